/* llmc tokenize: converts text to token ids and back. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static int
tokenize(int argc, char **argv)
{
	const char *text = NULL, *file = NULL, *ids = NULL, *args[1] = { NULL };
	bool json = false, no_special = false, show = false;
	const Opt opt[] = {
		{ OPT_TEXT, 0, "text", "TEXT", &text,
		  "text to tokenize; without it standard input is read" },
		{ OPT_TEXT, 'f', "file", "FILE", &file,
		  "read the text from a file (- is standard input)" },
		{ OPT_TEXT, 0, "ids", "1,2,3", &ids, "detokenize these ids" },
		{ OPT_FLAG, 0, "no-special", NULL, &no_special,
		  "add no special tokens, parse them as plain text, omit them when detokenizing" },
		{ OPT_FLAG, 0, "show", NULL, &show,
		  "print one token per line: id and vocabulary entry" },
		{ OPT_FLAG, 0, "json", NULL, &json, "print {\"ids\":[...]} or {\"text\":\"...\"}" },
	};
	llmc_error err = { 0 };
	llmc_tokenizer *t = NULL;
	int32_t *id = NULL;
	char *buf = NULL;
	size_t n = 0, n_bytes = 0;
	int code = 0;

	if (OPT_PARSE(&cmd_tokenize, opt, argc, argv, args) == 0)
		return opt_usage_error(&cmd_tokenize, "name a model or a tokenizer");
	if ((text != NULL) + (file != NULL) + (ids != NULL) > 1)
		return opt_usage_error(&cmd_tokenize,
		                       "--text, --file and --ids exclude each other");
	if (ids && !parse_ids(ids, &id, &n))
		return opt_usage_error(&cmd_tokenize, "--ids %s: expected ids such as 1,2,3", ids);
	llmc_status status = model_path(&args[0], json, &err);
	if (status != LLMC_OK) {
		free(id);
		return fail_with(&err);
	}
	status = llmc_tokenizer_open(args[0], &t, &err);
	llmc_model *m = NULL;
	const llmc_tokenizer *tok = t;
	if (status != LLMC_OK) {
		/* a description or artifact names its checkpoint, so open the model */
		Common c = { .quiet = true };
		llmc_error second = { 0 };
		if (open_model(&c, args[0], true, &m, &second) == LLMC_OK &&
		    llmc_model_tokenizer(m)) {
			tok = llmc_model_tokenizer(m);
			status = LLMC_OK;
		}
	}
	if (status != LLMC_OK) {
		code = fail_with(&err);
		goto out;
	}
	if (ids) {
		size_t need = 0;
		status = llmc_detokenize(tok, id, n, no_special, NULL, 0, &need, &err);
		if (status == LLMC_OK || status == LLMC_E_RANGE) {
			buf = malloc(need + 1);
			if (buf)
				status = llmc_detokenize(tok, id, n, no_special, buf, need + 1,
				                         &need, &err);
		}
		if (status != LLMC_OK || !buf) {
			code = fail_with(&err);
		} else if (json) {
			printf("{\"text\":");
			json_text(stdout, buf, need);
			printf("}\n");
		} else {
			print_generated(buf, need);
			putchar('\n');
		}
		goto out;
	}
	buf = text ? strdup(text) : read_all(file ? file : "-", &n_bytes);
	if (!buf) {
		code = EXIT_INPUT;
		goto out;
	}
	if (text)
		n_bytes = strlen(text);
	status =
	    tokenize_alloc(tok, buf, n_bytes,
	                   no_special ? 0 : LLMC_ADD_SPECIAL | LLMC_PARSE_SPECIAL, &id, &n, &err);
	if (status != LLMC_OK) {
		code = fail_with(&err);
		goto out;
	}
	if (json)
		printf("{\"ids\":[");
	for (size_t i = 0; i < n; i++) {
		const char *entry = llmc_token_text(tok, id[i]);
		if (show && !json) {
			printf("%7d  ", id[i]);
			print_generated(entry ? entry : "", entry ? strlen(entry) : 0);
			putchar('\n');
		} else {
			printf("%s%d", i ? "," : "", id[i]);
		}
	}
	if (json)
		printf("]}\n");
	else if (!show)
		putchar('\n');
out:
	free(id);
	free(buf);
	llmc_close(m);
	llmc_tokenizer_close(t);
	return code;
}

const Command cmd_tokenize = {
	"tokenize",
	"MODEL [--text T | --ids 1,2,3] [options]",
	"convert text to token ids and back; needs no weights",
	"  llmc tokenize model.gguf --text \"Hello, world\"\n"
	"  llmc tokenize tokenizer.json --ids 19556,28 --json\n",
	tokenize,
};
