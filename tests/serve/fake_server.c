/* HTTP server over a fake engine, for tests that control its speed and its failures.
 *
 *   fake_server [key=value ...]      tokenizer= context= max_live= step_ms= fail_at= hold=1 mortal=1, and options of the server
 *
 * Prints its URL. It ends on SIGTERM like llmc serve, then prints the number of requests left in
 * the engine. SIGUSR1 releases a held engine and fails a mortal one. */
#include <signal.h>
#include <stdio.h>

#include "tests/serve/fake_engine.h"

static void
on_log(void *user, int level, const char *line)
{
	(void)user;
	if (level <= LLMC_LOG_INFO)
		fprintf(stderr, "%s\n", line);
}

static bool mortal;

static void *
let_go(void *engine)
{
	sigset_t set;
	int sig;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigwait(&set, &sig);
	((Fake *)engine)->hold = false;
	((Fake *)engine)->gone = mortal;
	return NULL;
}

int
main(int argc, char **argv)
{
	Fake f;
	llmc_serve_options o = LLMC_INIT(llmc_serve_options);
	llmc_tokenizer *t = NULL;
	llmc_error err = { 0 };
	Server *s;
	int context = 256, max_live = 64, step_ms = 1, sig, drain_ms = 5000;
	long fail_at = 0;
	bool hold = false;
	sigset_t set;
	pthread_t waits;

	o.log = on_log;
	for (int i = 1; i < argc; i++) {
		const char *v = strchr(argv[i], '=');
		size_t n = v ? (size_t)(v - argv[i]) : 0;
#define IS(name) (v && n == strlen(name) && strncmp(argv[i], name, n) == 0)
		if (!v)
			return 1;
		v++;
		if (IS("tokenizer") && llmc_tokenizer_open(v, &t, &err) != LLMC_OK) {
			fprintf(stderr, "%s\n", err.text);
			return 1;
		} else if (IS("context"))
			context = atoi(v);
		else if (IS("max_live"))
			max_live = atoi(v);
		else if (IS("step_ms"))
			step_ms = atoi(v);
		else if (IS("fail_at"))
			fail_at = atol(v);
		else if (IS("hold"))
			hold = atoi(v) != 0;
		else if (IS("mortal"))
			mortal = atoi(v) != 0;
		else if (IS("drain_ms"))
			drain_ms = atoi(v);
		else if (IS("api_key"))
			o.api_key = v;
		else if (IS("host"))
			o.host = v;
		else if (IS("port"))
			o.port = atoi(v);
		else if (IS("allow_host"))
			o.allow_host = v;
		else if (IS("max_connections_per_client"))
			o.max_connections_per_client = atoi(v);
		else if (IS("allow_origin"))
			o.allow_origin = v;
		else if (IS("max_body_bytes"))
			o.max_body_bytes = atol(v);
		else if (IS("batch_dir"))
			o.batch_dir = v;
		else if (IS("batch_dir_bytes"))
			o.batch_dir_bytes = atol(v);
		else if (IS("keys"))
			o.keys = v;
		else if (IS("max_connections"))
			o.max_connections = atoi(v);
		else if (IS("header_timeout_s"))
			o.header_timeout_s = atof(v);
		else if (IS("body_timeout_s"))
			o.body_timeout_s = atof(v);
		else if (IS("idle_timeout_s"))
			o.idle_timeout_s = atof(v);
		else if (IS("log_json"))
			o.log_json = atoi(v) != 0;
	}
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	sigdelset(&set, SIGUSR1);
	fake_init(&f, t, max_live);
	f.step_ms = step_ms;
	f.fail_at = fail_at;
	f.hold = hold;
	if (pthread_create(&waits, NULL, let_go, &f) != 0)
		return 1;
	pthread_detach(waits);
	Backend b = fake_backend(&f, context);
	if (server_open(&b, &o, &s, &err) != LLMC_OK) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	printf("http://127.0.0.1:%d\n", server_port(s));
	fflush(stdout);
	sigwait(&set, &sig);
	server_stop(s);
	server_wait(s, drain_ms);
	server_close(s);
	printf("left %d\n", f.n_live);
	free(f.held);
	llmc_tokenizer_close(t);
	return f.n_live != 0;
}
