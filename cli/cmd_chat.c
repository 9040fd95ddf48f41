/* llmc chat: a conversation on the terminal. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

typedef struct Reply {
	FILE *kept;
} Reply;

static bool
on_token(void *user, int32_t id, const char *text, size_t n)
{
	Reply *r = user;

	(void)id;
	fwrite(text, 1, n, stdout);
	fflush(stdout);
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
chat(int argc, char **argv)
{
	Common c = { 0 };
	Sampling smp = {
		.p = { .temperature = 0.7f, .top_p = 0.95f, .speculate = LLMC_MAX_SPECULATE }
	};
	const char *system = NULL, *draft = NULL, *args[1] = { NULL };
	Opt opt[] = {
		{ OPT_GROUP, 0, "Chat", NULL, NULL, NULL },
		{ OPT_TEXT, 0, "system", "TEXT", &system, "system message" },
		OPT_SAMPLING_BY(smp.by, "model: the model's own advice, where its files have some, "
		                        "is the default of sampling options; neutral: the values "
		                        "below are [model]"),
		OPT_SAMPLING,
		OPT_DRAFT(draft),
		OPT_COMMON(c),
	};
	llmc_error err = { 0 };
	llmc_model *m = NULL;
	TokenSource s = { 0 };
	char *history = NULL, *line = NULL, drafted[100];
	size_t history_n = 0, line_cap = 0;
	bool first = true, tty = isatty(STDIN_FILENO);
	int code = 0;

	opt_help(opt, sizeof opt / sizeof *opt, &smp.p.seed,
	         "seed of sampling; the same seed gives the same tokens [a fresh one]");
	if (OPT_PARSE(&cmd_chat, opt, argc, argv, args) == 0)
		return opt_usage_error(&cmd_chat, "name a model");
	if (!sampling_known(smp.by))
		return opt_usage_error(&cmd_chat, "--sampling %s: expected model or neutral",
		                       smp.by);
	if (!opt_given(&smp.p.seed))
		smp.p.seed = fresh_seed();
	if (draft && smp.p.speculate < 1)
		return opt_usage_error(&cmd_chat, "--draft and --speculate 0 exclude each other");
	draft_prepare(&c, draft);
	llmc_limits lim = limits_of(&c);
	if (smp.p.speculate > 0)
		lim.n_out = 1 + smp.p.speculate,
		lim.marks = 1; /* one mark per step, before its draft tokens */
	c.fit = &lim;
	llmc_status status = open_model(&c, args[0], false, &m, &err);
	const llmc_tokenizer *t = m ? llmc_model_tokenizer(m) : NULL;
	if (status == LLMC_OK && !t) {
		err.code = status = LLMC_E_INPUT;
		snprintf(err.text, sizeof err.text, "%s: has no tokenizer: chat needs one",
		         args[0]);
	}
	if (status == LLMC_OK && !c.quiet)
		fprintf(stderr, "llmc: %s; seed %llu\n", c.fit_text,
		        (unsigned long long)smp.p.seed);
	if (status == LLMC_OK)
		sampling_advice(m, &smp, !smp.by || !strcmp(smp.by, "model"), c.quiet);
	if (status == LLMC_OK)
		status = token_source_open(&c, m, args[0], draft, &smp, &lim, &s, &err);
	if (status != LLMC_OK) {
		token_source_close(&s);
		llmc_close(m);
		return fail_with(&err);
	}
	FILE *f = open_memstream(&history, &history_n);
	if (!f) {
		complain("out of memory");
		token_source_close(&s);
		llmc_close(m);
		return EXIT_MACHINE;
	}
	fputc('[', f);
	if (system)
		add_message(f, &first, "system", system, strlen(system));
	if (tty && !c.quiet)
		fprintf(stderr, "Ctrl-D or /quit ends the chat; Ctrl-C twice exits at once.\n");
	llmc_params p = params_of(&smp);
	for (;;) {
		if (tty)
			fputs(colour_on(stdout) ? "\033[1m> \033[0m" : "> ", stdout);
		fflush(stdout);
		ssize_t got = getline(&line, &line_cap, stdin);
		if (got < 0)
			break;
		while (got > 0 && (line[got - 1] == '\n' || line[got - 1] == '\r'))
			line[--got] = 0;
		if (got == 0)
			continue;
		if (!strcmp(line, "/quit") || !strcmp(line, "/exit"))
			break;
		add_message(f, &first, "user", line, (size_t)got);
		char *messages = NULL, *prompt = NULL, *reply = NULL;
		size_t n = 0, n_tok = 0, reply_n = 0;
		int32_t *tok = NULL;
		if (asprintf(&messages, "%s]", history) < 0)
			messages = NULL;
		status = chat_alloc(t, messages ? messages : "[]",
		                    "{\"add_generation_prompt\":true}", &prompt, &n, &err);
		if (status == LLMC_OK)
			status =
			    tokenize_alloc(t, prompt, n, LLMC_PARSE_SPECIAL, &tok, &n_tok, &err);
		llmc_result res = LLMC_INIT(llmc_result);
		Reply r = { .kept = open_memstream(&reply, &reply_n) };
		interrupt_install();
		if (status == LLMC_OK && r.kept)
			status = token_source_run(&s, tok, n_tok, &p, on_token, &r, &res, &err);
		if (r.kept)
			fclose(r.kept);
		putchar('\n');
		token_source_drafts(&s, drafted, sizeof drafted);
		if (status == LLMC_OK && !c.quiet && tty)
			fprintf(stderr, "(%d tokens, %.1f/s%s)\n", res.n_new,
			        res.decode_s > 0 && res.n_new > 1 ? (res.n_new - 1) / res.decode_s
			                                          : 0,
			        drafted);
		if (status == LLMC_OK)
			add_message(f, &first, "assistant", reply, reply_n);
		free(messages);
		free(prompt);
		free(tok);
		free(reply);
		if (status != LLMC_OK || interrupted()) {
			code = status != LLMC_OK ? fail_with(&err) : EXIT_INTERRUPTED;
			break;
		}
		p.seed++;
	}
	fclose(f);
	free(history);
	free(line);
	token_source_close(&s);
	llmc_close(m);
	free(smp.stop.v);
	free(c.set.v);
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
