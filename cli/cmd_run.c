/* llmc run: continue a prompt. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json_schema.h"
#include "cli/cli.h"

typedef struct RunState {
	bool quiet_text; /* --json: collect the output instead of streaming it */
	int32_t *id;
	size_t n_id, cap_id;
	char *text;
	size_t n_text, cap_text;
	bool failed;
} RunState;

static bool
on_token(void *user, int32_t id, const char *text, size_t n)
{
	RunState *r = user;

	if (interrupted())
		return false;
	if (id >= 0) {
		if (r->n_id == r->cap_id) {
			r->cap_id = r->cap_id ? 2 * r->cap_id : 256;
			int32_t *p = realloc(r->id, r->cap_id * sizeof *p);
			if (!p) {
				r->failed = true;
				return false;
			}
			r->id = p;
		}
		r->id[r->n_id++] = id;
	}
	if (r->n_text + n + 1 > r->cap_text) {
		r->cap_text = 2 * (r->n_text + n) + 256;
		char *p = realloc(r->text, r->cap_text);
		if (!p) {
			r->failed = true;
			return false;
		}
		r->text = p;
	}
	memcpy(r->text + r->n_text, text, n);
	r->n_text += n;
	if (!r->quiet_text) {
		print_generated(text, n);
	}
	return true;
}

/* Write the logits of all prompt positions, in chunks of the session's limit. */
static llmc_status
prompt_logits(llmc_session *s, const llmc_model_info *info, const int32_t *tok, size_t n_tok,
              int32_t chunk, const char *path, llmc_error *err)
{
	llmc_seq q;
	llmc_status status = llmc_seq_new(s, (int32_t)n_tok, &q, err);
	float *logits = malloc(n_tok * (size_t)info->vocab * sizeof *logits);

	if (!logits) {
		err->code = status = LLMC_E_MEMORY;
		snprintf(err->text, sizeof err->text, "out of memory for %zu rows of logits",
		         n_tok);
	}
	for (size_t at = 0; status == LLMC_OK && at < n_tok;) {
		int32_t n = n_tok - at < (size_t)chunk ? (int32_t)(n_tok - at) : chunk;
		llmc_chunk c = { .seq = q, .tok = tok + at, .n_tok = n, .n_out = n };
		status = llmc_forward(s, &c, 1, logits + at * (size_t)info->vocab, err);
		at += (size_t)n;
	}
	if (status == LLMC_OK && !write_npy(path, logits, n_tok, (size_t)info->vocab)) {
		err->code = status = LLMC_E_IO;
		snprintf(err->text, sizeof err->text, "%s: cannot write", path);
	}
	free(logits);
	llmc_seq_free(s, q);
	return status;
}

static void
print_ids(const char *key, const int32_t *id, size_t n)
{
	printf("\"%s\":[", key);
	for (size_t i = 0; i < n; i++)
		printf("%s%d", i ? "," : "", id[i]);
	printf("],");
}

static void
print_json(const RunState *r, const int32_t *tok, size_t n_tok, const llmc_result *res,
           double load_s)
{
	/* the prefill yields the first new token */
	int decoded = res->n_new > 1 ? res->n_new - 1 : 0;

	putchar('{');
	print_ids("prompt_tokens", tok, n_tok);
	print_ids("tokens", r->id, r->n_id);
	printf("\"text\":");
	json_text(stdout, r->text ? r->text : "", r->n_text);
	printf(",\"finish_reason\":\"%s\",\"timing\":{\"load_s\":%.6f,\"prefill_s\":%.6f,\"decode_"
	       "s\":%.6f,\"prefill_tps\":%.3f,\"decode_tps\":%.3f}}\n",
	       llmc_finish_name(res->finish), load_s, res->prefill_s, res->decode_s,
	       res->prefill_s > 0 ? res->n_prompt / res->prefill_s : 0,
	       res->decode_s > 0 ? decoded / res->decode_s : 0);
}

typedef struct Run {
	Common c;
	Sampling smp;
	const char *path, *prompt, *file, *tokens, *logits, *system, *schema, *rules, *check,
	    *additional;
	bool chat, show_tokens, no_special;
	List images;
	llmc_limits lim;
	int32_t *tok; /* prompt */
	size_t n_tok;
} Run;

/* Read the grammar of --schema or --grammar. t NULL: for --check without a model. */
static llmc_status
grammar_file(const Run *r, const llmc_tokenizer *t, llmc_grammar **out, llmc_error *err)
{
	llmc_grammar_options opt = LLMC_INIT(llmc_grammar_options);
	const char *end = r->rules ? strrchr(r->rules, '.') : NULL;
	llmc_grammar_kind kind = r->schema                      ? LLMC_GRAMMAR_JSON_SCHEMA
	                         : end && !strcmp(end, ".lark") ? LLMC_GRAMMAR_LARK
	                                                        : LLMC_GRAMMAR_GBNF;
	size_t n;
	char *text = read_all(r->schema ? r->schema : r->rules, &n);

	if (!text) /* read_all has printed the error */
		return err->code = LLMC_E_INPUT;
	if (r->additional)
		opt.additional = (llmc_additional)json_schema_additional_of(r->additional);
	llmc_status status = llmc_grammar_open(t, kind, text, n, &opt, out, err);
	free(text);
	return status;
}

/* --check: report whether a file matches the grammar. */
static int
check_file(const Run *r)
{
	const char *path = r->check;
	llmc_grammar *g = NULL;
	llmc_error err = { 0 };
	bool complete = false;
	size_t n = 0, matched = 0;
	llmc_status status = grammar_file(r, NULL, &g, &err);
	char *text = status == LLMC_OK ? read_all(path, &n) : NULL;

	if (text)
		status = llmc_grammar_match(g, text, n, &complete, &matched, &err);
	else if (status == LLMC_OK)
		status = err.code = LLMC_E_INPUT;
	free(text);
	llmc_grammar_close(g);
	if (status != LLMC_OK)
		return fail_with(&err);
	if (complete)
		printf("%s matches the grammar (%zu bytes).\n", path, n);
	else if (matched < n)
		complain(
		    "%s does not match the grammar: byte %zu cannot follow the bytes before it",
		    path, matched);
	else
		complain("%s does not match the grammar: it ends after %zu bytes, but the output "
		         "must continue",
		         path, n);
	return complete ? 0 : EXIT_CHECK;
}

/* Report options that contradict each other. Returns 0 or the exit code. */
static int
check_options(const Run *r, bool model)
{
	if (r->schema && r->rules)
		return opt_usage_error(&cmd_run, "--schema and --grammar exclude each other");
	if (r->check && !r->schema && !r->rules)
		return opt_usage_error(&cmd_run, "--check needs --schema or --grammar");
	if (r->additional && json_schema_additional_of(r->additional) < 0)
		return opt_usage_error(&cmd_run, ADDITIONAL_UNKNOWN, r->additional);
	if (r->additional && !r->schema)
		return opt_usage_error(&cmd_run, "--additional-properties needs --schema");
	if (r->check)
		return 0;
	if (!model)
		return opt_usage_error(&cmd_run, NO_MODEL);
	if ((r->prompt != NULL) + (r->file != NULL) + (r->tokens != NULL) > 1)
		return opt_usage_error(&cmd_run,
		                       "--prompt, --file and --tokens exclude each other");
	if (!sampling_known(r->smp.by))
		return opt_usage_error(&cmd_run, "--sampling %s: expected model or neutral",
		                       r->smp.by);
	if (r->logits && r->c.draft)
		return opt_usage_error(&cmd_run, "--logits and --draft exclude each other");
	if (r->c.draft && r->smp.p.speculate < 1)
		return opt_usage_error(&cmd_run, "--draft and --speculate 0 exclude each other");
	if (r->images.n && (r->c.draft || r->logits))
		return opt_usage_error(&cmd_run, "--image and --%s exclude each other",
		                       r->c.draft ? "draft" : "logits");
	if (r->system && !r->chat)
		return opt_usage_error(&cmd_run, "--system needs --chat");
	return 0;
}

static int
parse(int argc, char **argv, Run *r)
{
	const char *args[1] = { NULL };
	Sampling *smp = &r->smp;
	const Opt opt[] = {
		{ OPT_GROUP, 0, "Prompt", NULL, NULL, NULL },
		{ OPT_TEXT, 'p', "prompt", "TEXT", &r->prompt,
		  "prompt; without it standard input is read" },
		{ OPT_TEXT, 'f', "file", "FILE", &r->file,
		  "read the prompt from a file (- is standard input)" },
		{ OPT_TEXT, 0, "tokens", "1,2,3", &r->tokens,
		  "prompt as token ids; needs no tokenizer" },
		{ OPT_FLAG, 0, "chat", NULL, &r->chat,
		  "send the prompt as a user message through the chat template" },
		{ OPT_TEXT, 0, "system", "TEXT", &r->system, "system message, with --chat" },
		OPT_CHAT_TEMPLATE(r->c),
		{ OPT_LIST, 0, "image", "FILE", &r->images,
		  "image of the prompt, for a model with a vision tower; may be repeated. Images "
		  "come first in the message" },
		OPT_MMPROJ(r->c),
		{ OPT_FLAG, 0, "no-special", NULL, &r->no_special,
		  "add and recognise no special tokens" },
		{ OPT_TEXT, 0, "logits", "FILE.npy", &r->logits,
		  "write the prompt's logits [n_prompt, vocab], fp32" },
		{ OPT_FLAG, 0, "show-tokens", NULL, &r->show_tokens, "print ids, not text" },
		OPT_SAMPLING_BY(smp->by,
		                "model: the model's own advice, where its files have some, "
		                "is the default of sampling options; neutral: the values "
		                "below are [model with --chat, else neutral]"),
		OPT_SAMPLING,
		OPT_DRAFT(r->c.draft),
		{ OPT_TEXT, 0, "schema", "FILE", &r->schema,
		  "the output is JSON of this schema (- is standard input); see "
		  "docs/constrained.md" },
		{ OPT_TEXT, 0, "grammar", "FILE", &r->rules,
		  "the output matches this grammar: Lark if the file name ends in .lark, else "
		  "GBNF" },
		OPT_ADDITIONAL(r->additional,
		               "whether objects of --schema without additionalProperties may have "
		               "unlisted properties, and arrays with prefixItems but without "
		               "items more elements: auto (if it names its dialect with $schema), "
		               "closed or open [auto]"),
		{ OPT_TEXT, 0, "check", "FILE", &r->check,
		  "with --schema or --grammar: report whether the file matches it (- is standard "
		  "input); needs no model" },
		OPT_FIT(r->c),
		OPT_COMMON(r->c),
	};

	size_t n_arg = OPT_PARSE(&cmd_run, opt, argc, argv, args);
	int code = check_options(r, n_arg > 0);
	if (!code && r->tokens && !parse_ids(r->tokens, &r->tok, &r->n_tok))
		return opt_usage_error(&cmd_run, "--tokens %s: expected ids such as 1,2,3",
		                       r->tokens);
	r->path = args[0];
	return code;
}

/* Limits of the session. --logits needs as many output rows as tokens per step. */
static void
set_limits(Run *r)
{
	llmc_limits *lim = &r->lim;

	*lim = limits_of(&r->c);
	if (r->smp.p.speculate > 0) {
		lim->n_out = 1 + r->smp.p.speculate;
		lim->marks = 1; /* one mark per step, before its draft tokens */
	}
	if (r->logits) {
		lim->chunk = lim->chunk ? lim->chunk : 512;
		if (lim->context && lim->chunk > lim->context)
			lim->chunk = lim->context;
		lim->n_out = lim->chunk;
	}
}

/* Fill the chat template with the user's message, which is freed, and the system message. */
static llmc_status
fill_template(const Run *r, const llmc_tokenizer *t, char **text, size_t *n_bytes, llmc_error *err)
{
	const bool parts = r->images.n > 0;
	/* build the messages in a memory stream, so that json_text can escape them */
	char *json = NULL, *filled = NULL;
	size_t json_n = 0;
	FILE *f = open_memstream(&json, &json_n);

	if (f) {
		fputc('[', f);
		if (r->system) {
			fputs("{\"role\":\"system\",\"content\":", f);
			json_text(f, r->system, strlen(r->system));
			fputs("},", f);
		}
		fputs("{\"role\":\"user\",\"content\":", f);
		for (size_t i = 0; i < r->images.n; i++)
			fputs(i ? ",{\"type\":\"image\"}" : "[{\"type\":\"image\"}", f);
		fputs(parts ? ",{\"type\":\"text\",\"text\":" : "", f);
		json_text(f, *text, *n_bytes);
		fputs(parts ? "}]}]" : "}]", f);
		fclose(f);
	}
	llmc_status status = chat_alloc(t, json ? json : "[]", "{\"add_generation_prompt\":true}",
	                                &filled, n_bytes, err);
	free(json);
	free(*text);
	*text = filled;
	return status;
}

/* Read and tokenize the prompt. */
static llmc_status
read_prompt(Run *r, const llmc_model *m, const PromptImages *images, llmc_error *err)
{
	const llmc_tokenizer *t = llmc_model_tokenizer(m);
	llmc_status status = LLMC_OK;
	size_t n_bytes = 0;

	if (r->tokens)
		return LLMC_OK;
	if (!t) {
		snprintf(err->text, sizeof err->text,
		         "%s: has no tokenizer; pass token ids with --tokens 1,2,3", r->path);
		return err->code = LLMC_E_INPUT;
	}
	char *text = r->prompt ? strdup(r->prompt) : read_all(r->file ? r->file : "-", &n_bytes);
	if (!text)
		return err->code = LLMC_E_INPUT; /* read_all has printed the error */
	if (r->prompt)
		n_bytes = strlen(text);
	if (r->chat)
		status = fill_template(r, t, &text, &n_bytes, err);
	if (status == LLMC_OK)
		status = prompt_images_text(images, r->chat, &text, &n_bytes, err);
	int flags = r->no_special ? 0
	            : r->chat     ? LLMC_PARSE_SPECIAL
	                          : LLMC_ADD_SPECIAL | LLMC_PARSE_SPECIAL;
	if (status == LLMC_OK)
		status = tokenize_alloc(t, text, n_bytes, flags, &r->tok, &r->n_tok, err);
	free(text);
	return status;
}

/* Open the grammar of --schema or --grammar, if any. */
static llmc_status
open_grammar(const Run *r, const llmc_model *m, llmc_grammar **out, llmc_error *err)
{
	const llmc_tokenizer *t = llmc_model_tokenizer(m);

	if (!r->schema && !r->rules)
		return LLMC_OK;
	if (!t) {
		snprintf(err->text, sizeof err->text,
		         "%s: the model has no tokenizer, which --schema and --grammar need",
		         r->path);
		return err->code = LLMC_E_INPUT;
	}
	return grammar_file(r, t, out, err);
}

static int
print_result(const Run *r, const RunState *out, const TokenSource *s, const llmc_result *res,
             double load_s)
{
	char drafted[100];

	if (out->failed) {
		complain("out of memory");
		return EXIT_MACHINE;
	}
	if (r->c.json) {
		print_json(out, r->tok, r->n_tok, res, load_s);
		return 0;
	}
	for (size_t i = 0; r->show_tokens && i < out->n_id; i++)
		printf("%s%d", i ? "," : "", out->id[i]);
	putchar('\n');
	fflush(stdout);
	token_source_drafts(s, drafted, sizeof drafted);
	if (!r->c.quiet)
		fprintf(stderr,
		        "llmc: loaded in %.2f s; %d prompt tokens in %.3f s (%.0f/s); %d new in "
		        "%.2f s (%.1f/s)%s\n",
		        load_s, res->n_prompt, res->prefill_s,
		        res->prefill_s > 0 ? res->n_prompt / res->prefill_s : 0, res->n_new,
		        res->decode_s,
		        res->decode_s > 0 && res->n_new > 1 ? (res->n_new - 1) / res->decode_s : 0,
		        drafted);
	return 0;
}

/* Generate with an open model. Returns the exit code; on an error *err is set. */
static int
generate(Run *r, llmc_model *m, llmc_error *err)
{
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	llmc_result res = LLMC_INIT(llmc_result);
	RunState out = { .quiet_text = r->c.json || r->show_tokens };
	llmc_grammar *grammar = NULL;
	TokenSource s = { 0 };
	PromptImages images;
	int code = 0;

	llmc_info(m, &info);
	llmc_status status = prompt_images_open(&r->c, m, &r->images, &images, err);
	if (status == LLMC_OK)
		status = read_prompt(r, m, &images, err);
	if (status != LLMC_OK) {
		prompt_images_close(&images);
		return fail_with(err);
	}
	if (r->logits && r->lim.chunk > r->lim.context)
		r->lim.chunk = r->lim.n_out = r->lim.context;
	if (!r->c.quiet)
		fprintf(stderr, "llmc: %s\n", r->c.fit_text);
	sampling_advice(m, &r->smp, r->smp.by ? !strcmp(r->smp.by, "model") : r->chat, r->c.quiet);
	llmc_params p = params_of(&r->smp);
	status = token_source_open(&r->c, m, r->path, &r->smp, &r->lim, &s, err);
	if (status == LLMC_OK && r->logits)
		status = prompt_logits(s.s, &info, r->tok, r->n_tok, r->lim.chunk, r->logits, err);
	if (status == LLMC_OK)
		status = open_grammar(r, m, &grammar, err);
	p.grammar = grammar;
	s.image = images.part;
	s.n_image = images.n;
	if (status == LLMC_OK)
		status = token_source_run(&s, r->tok, r->n_tok, &p, on_token, &out, &res, err);
	code = status == LLMC_OK ? print_result(r, &out, &s, &res, info.load_s) : fail_with(err);
	if (status == LLMC_OK && interrupted())
		code = EXIT_INTERRUPTED;
	token_source_close(&s);
	prompt_images_close(&images);
	llmc_grammar_close(grammar);
	free(out.id);
	free(out.text);
	return code;
}

static int
run(int argc, char **argv)
{
	Run r = { .smp.p.speculate = LLMC_MAX_SPECULATE };
	llmc_error err = { 0 };
	llmc_model *m = NULL;
	int code = parse(argc, argv, &r);

	if (!code && r.check)
		code = check_file(&r);
	else if (!code) {
		set_limits(&r);
		r.c.fit = &r.lim;
		r.c.images = r.images.n > 0;
		/* before this call a signal ends the process at once */
		llmc_status status = open_model(&r.c, r.path, false, &m, &err);
		interrupt_install();
		code = status == LLMC_OK ? generate(&r, m, &err) : fail_with(&err);
	}
	llmc_close(m);
	free(r.tok);
	free(r.smp.stop.v);
	free(r.images.v);
	free(r.c.set.v);
	return code;
}

const Command cmd_run = {
	"run",
	"MODEL [--prompt TEXT] [options]",
	"continue a prompt, streamed to the terminal",
	"  llmc run model.gguf --prompt \"Once upon a time\" -n 64\n"
	"  llmc run model.gguf --chat --prompt \"What is a GGUF file?\" --temperature 0.7 --seed "
	"1\n"
	"  llmc run model.gguf --chat --prompt \"Invent a person\" --schema person.json\n"
	"  llmc run model-folder --quantize q4_k --prompt \"Once upon a time\"\n"
	"  llmc run model-folder --lora adapter-folder --prompt \"Once upon a time\"\n"
	"  llmc run tiny.yaml --random-weights --tokens 1,2,3 --json\n",
	run,
};
