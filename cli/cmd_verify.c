/* llmc verify: compare the plan with the fp32 reference, value by value. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef struct Out {
	const Common *c;
	const char *values; /* folder for values, or NULL */
	bool failed;        /* writing a value failed */
	int n;
} Out;

static void
on_row(void *user, const llmc_verify_row *r)
{
	Out *o = user;
	char path[PATH_MAX];

	if (o->values && r->want && !o->failed) {
		int n = snprintf(path, sizeof path, "%s/%s.npy", o->values, r->value);
		o->failed = n >= (int)sizeof path ||
		            !write_npy(path, r->want, (size_t)r->rows, (size_t)r->width);
	}
	if (o->c->json) {
		printf("%s{\"layer\":%d,\"op\":\"%s\",\"value\":", o->n++ ? "," : "", r->layer,
		       r->op);
		json_text(stdout, r->value, strlen(r->value));
		printf(",\"max_err\":%.6g,\"range\":%.6g,\"tolerance\":%.6g,\"ok\":%s}", r->max_err,
		       r->range, r->tolerance, r->ok ? "true" : "false");
		return;
	}
	if (o->n++ == 0)
		printf("%-16s %-14s %12s %12s %10s\n", "value", "op", "error", "range", "allowed");
	printf("%-16s %-14s %12.3g %12.3g %10.2g%s\n", r->value, r->op, r->max_err, r->range,
	       r->tolerance, r->ok ? "" : "  <-- too large");
}

static int
verify(int argc, char **argv)
{
	Common c = { 0 };
	const char *tokens = NULL, *prompt = NULL, *values = NULL, *args[1] = { NULL };
	const Opt opt[] = {
		{ OPT_GROUP, 0, "Verify", NULL, NULL, NULL },
		{ OPT_TEXT, 'p', "prompt", "TEXT", &prompt, "prompt to run [a short sentence]" },
		{ OPT_TEXT, 0, "tokens", "1,2,3", &tokens, "prompt as token ids" },
		{ OPT_TEXT, 0, "values", "DIR", &values,
		  "write the reference's values to this folder, as VALUE.npy [rows, width] in "
		  "fp32; x1, x2, ... are layer outputs" },
		OPT_FIT(c),
		OPT_COMMON(c),
	};
	llmc_error err = { 0 };
	llmc_model *m = NULL;
	int32_t *tok = NULL;
	size_t n = 0;

	if (OPT_PARSE(&cmd_verify, opt, argc, argv, args) == 0)
		return opt_usage_error(&cmd_verify, NO_MODEL);
	if (tokens && !parse_ids(tokens, &tok, &n))
		return opt_usage_error(&cmd_verify, "--tokens %s: expected ids such as 1,2,3",
		                       tokens);
	llmc_status s = open_model(&c, args[0], false, &m, &err);
	if (s != LLMC_OK) {
		free(tok);
		return fail_with(&err);
	}
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	llmc_info(m, &info);
	const char *text = prompt ? prompt : "The quick brown fox jumps over the lazy dog.";
	if (!tokens && llmc_model_tokenizer(m)) {
		s = tokenize_alloc(llmc_model_tokenizer(m), text, strlen(text),
		                   LLMC_ADD_SPECIAL | LLMC_PARSE_SPECIAL, &tok, &n, &err);
	} else if (!tokens) {
		n = 8;
		tok = malloc(n * sizeof *tok);
		for (size_t i = 0; tok && i < n; i++)
			tok[i] = (int32_t)((int64_t)(i * 7919 + 13) % info.vocab);
	}
	Out o = { .c = &c, .values = values };
	if (c.json)
		printf("{\"rows\":[");
	if (s == LLMC_OK)
		s = llmc_verify(m, tok, n, on_row, &o, &err);
	if (s == LLMC_OK && o.failed) {
		s = err.code = LLMC_E_IO;
		snprintf(err.text, sizeof err.text, "%s: cannot write values to this folder",
		         values);
	}
	if (c.json) {
		printf("],\"ok\":%s", s == LLMC_OK ? "true" : "false");
		if (s != LLMC_OK) {
			printf(",\"error\":");
			json_text(stdout, err.text, strlen(err.text));
		}
		printf("}\n");
	} else if (s == LLMC_OK) {
		printf("%d values of %s agree with the fp32 reference\n", o.n, info.target);
	}
	llmc_close(m);
	free(tok);
	free(c.set.v);
	return s == LLMC_OK ? 0 : fail_with(&err);
}

const Command cmd_verify = {
	"verify",
	"MODEL [--prompt TEXT | --tokens 1,2,3]",
	"compare the compiled plan with the fp32 reference, step by step",
	"  llmc verify model.gguf\n"
	"  llmc verify configs/tiny.yaml --random-weights --arch generic\n",
	verify,
};
