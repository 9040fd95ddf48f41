/* llmc chat: a conversation on the terminal. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

/* A conversation: tokens come from `source`, the messages so far are JSON in `history`. */
typedef struct Chat {
	Common c;
	Sampling smp;
	const char *system, *path;
	llmc_limits lim;
	llmc_model *m;
	TokenSource source;
	llmc_params p;
	FILE *f; /* writes to history */
	char *history;
	size_t history_n;
	bool first, tty; /* no message is in history yet; standard input is a terminal */
} Chat;

typedef struct Reply {
	FILE *kept;
} Reply;

static bool
on_token(void *user, int32_t id, const char *text, size_t n)
{
	Reply *r = user;

	(void)id;
	print_generated(text, n);
	fwrite(text, 1, n, r->kept);
	return !interrupted();
}

static void
add_message(FILE *f, bool *first, const char *role, const char *text, size_t n)
{
	fprintf(f, "%s{\"role\":\"%s\",\"content\":", *first ? "" : ",", role);
	json_text(f, text, n);
	fputc('}', f);
	fflush(f);
	*first = false;
}

static int
parse(int argc, char **argv, Chat *h)
{
	const char *args[1] = { NULL };
	Sampling *smp = &h->smp;
	Opt opt[] = {
		{ OPT_GROUP, 0, "Chat", NULL, NULL, NULL },
		{ OPT_TEXT, 0, "system", "TEXT", &h->system, "system message" },
		OPT_CHAT_TEMPLATE(h->c),
		OPT_SAMPLING_BY(smp->by, "model: the model's own advice, where its files have "
		                         "some, is the default of sampling options; neutral: the "
		                         "values below are [model]"),
		OPT_SAMPLING,
		OPT_DRAFT(h->c.draft),
		OPT_FIT(h->c),
		OPT_COMMON(h->c),
	};

	opt_help(opt, sizeof opt / sizeof *opt, &smp->p.seed,
	         "seed of sampling; the same seed gives the same tokens [a fresh one]");
	if (OPT_PARSE(&cmd_chat, opt, argc, argv, args) == 0)
		return opt_usage_error(&cmd_chat, NO_MODEL);
	if (!sampling_known(smp->by))
		return opt_usage_error(&cmd_chat, "--sampling %s: expected model or neutral",
		                       smp->by);
	if (!opt_given(&smp->p.seed))
		smp->p.seed = fresh_seed();
	if (h->c.draft && smp->p.speculate < 1)
		return opt_usage_error(&cmd_chat, "--draft and --speculate 0 exclude each other");
	h->path = args[0];
	return 0;
}

static llmc_status
open_chat(Chat *h, llmc_error *err)
{
	Common *c = &h->c;
	Sampling *smp = &h->smp;

	h->lim = limits_of(c);
	if (smp->p.speculate > 0) {
		h->lim.n_out = 1 + smp->p.speculate;
		h->lim.marks = 1; /* one mark per step, before its draft tokens */
	}
	c->fit = &h->lim;
	llmc_status status = open_model(c, h->path, false, &h->m, err);
	if (status != LLMC_OK)
		return status;
	if (!llmc_model_tokenizer(h->m)) {
		snprintf(err->text, sizeof err->text, "%s: has no tokenizer: chat needs one",
		         h->path);
		return err->code = LLMC_E_INPUT;
	}
	if (!c->quiet)
		fprintf(stderr, "llmc: %s; seed %llu\n", c->fit_text,
		        (unsigned long long)smp->p.seed);
	sampling_advice(h->m, smp, !smp->by || !strcmp(smp->by, "model"), c->quiet);
	h->p = params_of(smp);
	status = token_source_open(c, h->m, h->path, smp, &h->lim, &h->source, err);
	if (status == LLMC_OK && !(h->f = open_memstream(&h->history, &h->history_n))) {
		snprintf(err->text, sizeof err->text, "out of memory");
		return err->code = LLMC_E_MEMORY;
	}
	return status;
}

/* Read a line of the user without its line end. Returns its length, or -1 at the end of the chat.
 */
static ssize_t
read_line(const Chat *h, char **line, size_t *cap)
{
	if (h->tty)
		fputs(colour_on(stdout) ? "\033[1m> \033[0m" : "> ", stdout);
	fflush(stdout);
	ssize_t got = getline(line, cap, stdin);
	while (got > 0 && ((*line)[got - 1] == '\n' || (*line)[got - 1] == '\r'))
		(*line)[--got] = 0;
	return got > 0 && (!strcmp(*line, "/quit") || !strcmp(*line, "/exit")) ? -1 : got;
}

/* Render the messages so far by the chat template, and tokenize the result. */
static llmc_status
prompt_tokens(const Chat *h, int32_t **tok, size_t *n_tok, llmc_error *err)
{
	const llmc_tokenizer *t = llmc_model_tokenizer(h->m);
	char *messages = NULL, *prompt = NULL;
	size_t n = 0;

	if (asprintf(&messages, "%s]", h->history) < 0)
		messages = NULL;
	llmc_status status = chat_alloc(t, messages ? messages : "[]",
	                                "{\"add_generation_prompt\":true}", &prompt, &n, err);
	if (status == LLMC_OK)
		status = tokenize_alloc(t, prompt, n, LLMC_PARSE_SPECIAL, tok, n_tok, err);
	free(messages);
	free(prompt);
	return status;
}

/* Generate, print and keep the reply to the messages so far. */
static llmc_status
answer(Chat *h, llmc_error *err)
{
	llmc_result res = LLMC_INIT(llmc_result);
	char *reply = NULL, drafted[100];
	size_t reply_n = 0, n_tok = 0;
	int32_t *tok = NULL;
	llmc_status status = prompt_tokens(h, &tok, &n_tok, err);
	Reply r = { .kept = open_memstream(&reply, &reply_n) };

	interrupt_install();
	if (status == LLMC_OK && r.kept)
		status = token_source_run(&h->source, tok, n_tok, &h->p, on_token, &r, &res, err);
	if (r.kept)
		fclose(r.kept);
	putchar('\n');
	token_source_drafts(&h->source, drafted, sizeof drafted);
	if (status == LLMC_OK && !h->c.quiet && h->tty)
		fprintf(stderr, "(%d tokens, %.1f/s%s)\n", res.n_new,
		        res.decode_s > 0 && res.n_new > 1 ? (res.n_new - 1) / res.decode_s : 0,
		        drafted);
	if (status == LLMC_OK)
		add_message(h->f, &h->first, "assistant", reply, reply_n);
	free(tok);
	free(reply);
	return status;
}

/* Answer lines until the user ends the chat. Returns the exit code. */
static int
converse(Chat *h)
{
	llmc_error err = { 0 };
	char *line = NULL;
	size_t cap = 0;
	int code = 0;

	fputc('[', h->f);
	if (h->system)
		add_message(h->f, &h->first, "system", h->system, strlen(h->system));
	if (h->tty && !h->c.quiet)
		fprintf(stderr, "Ctrl-D or /quit ends the chat; Ctrl-C twice exits at once.\n");
	for (ssize_t got; !code && (got = read_line(h, &line, &cap)) >= 0;) {
		if (got == 0)
			continue;
		add_message(h->f, &h->first, "user", line, (size_t)got);
		if (answer(h, &err) != LLMC_OK)
			code = fail_with(&err);
		else if (interrupted())
			code = EXIT_INTERRUPTED;
		h->p.seed++;
	}
	free(line);
	return code;
}

static int
chat(int argc, char **argv)
{
	Chat h = {
		.smp.p = { .temperature = 0.7f, .top_p = 0.95f, .speculate = LLMC_MAX_SPECULATE },
		.first = true,
		.tty = isatty(STDIN_FILENO)
	};
	llmc_error err = { 0 };
	int code = parse(argc, argv, &h);

	if (!code)
		code = open_chat(&h, &err) == LLMC_OK ? converse(&h) : fail_with(&err);
	if (h.f)
		fclose(h.f);
	free(h.history);
	token_source_close(&h.source);
	llmc_close(h.m);
	free(h.smp.stop.v);
	free(h.c.set.v);
	return code;
}

const Command cmd_chat = {
	"chat",
	"MODEL [options]",
	"talk to a model that has a chat template",
	"  llmc chat model.gguf\n"
	"  echo \"Explain RoPE\" | llmc chat model.gguf --temperature 0 --quiet\n",
	chat,
};
