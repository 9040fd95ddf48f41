/* llmc bench serve: measures a server under load. It works with any server that has OpenAI's
 * routes. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/number.h"
#include "base/random.h"
#include "cli/cli.h"
#include "cli/load_generator.h"

/* ---- random numbers, lengths, prompts ---- */

static uint64_t
draw(uint64_t *state)
{
	return random_mix(*state += 0x9e3779b97f4a7c15u);
}

static double
uniform(uint64_t *state)
{
	return ((double)(draw(state) >> 11) + 0.5) * 0x1p-53;
}

/* "128", "64..512" (uniform), "exp:256" (exponential with that mean) */
typedef struct Lengths {
	bool exponential;
	int32_t lo, hi;
} Lengths;

static bool
parse_lengths(const char *s, Lengths *out)
{
	int used = 0;

	*out = (Lengths){ 0 };
	if (sscanf(s, "exp:%d%n", &out->lo, &used) == 1 && !s[used])
		out->exponential = true;
	else if (sscanf(s, "%d..%d%n", &out->lo, &out->hi, &used) != 2 || s[used])
		out->hi = sscanf(s, "%d%n", &out->lo, &used) == 1 && !s[used] ? out->lo : 0;
	if (out->exponential)
		out->hi = out->lo;
	return out->lo >= 1 && out->hi >= out->lo && out->hi <= 1 << 20;
}

static int32_t
length_of(const Lengths *l, uint64_t *state)
{
	if (l->exponential) {
		double v = -log(uniform(state)) * l->lo;
		return v < 1 ? 1 : v > 16.0 * l->lo ? 16 * l->lo : (int32_t)v;
	}
	return l->lo + (int32_t)(draw(state) % (uint64_t)(l->hi - l->lo + 1));
}

/* Short common words, each of which most tokenizers encode together with its space as one token. */
static const char *const word[] = {
	"the",   "of",    "and",    "to",    "in",    "is",     "was",  "that",  "for",   "on",
	"with",  "as",    "his",    "they",  "at",    "be",     "this", "from",  "have",  "or",
	"by",    "one",   "had",    "not",   "but",   "what",   "all",  "were",  "when",  "we",
	"there", "can",   "an",     "your",  "which", "their",  "said", "if",    "do",    "will",
	"each",  "about", "how",    "up",    "out",   "them",   "then", "she",   "many",  "some",
	"so",    "these", "would",  "other", "into",  "has",    "more", "her",   "two",   "like",
	"him",   "see",   "time",   "could", "no",    "make",   "than", "first", "been",  "its",
	"who",   "now",   "people", "my",    "made",  "over",   "did",  "down",  "only",  "way",
	"find",  "use",   "may",    "water", "long",  "little", "very", "after", "words", "called",
	"just",  "where", "most",   "know",
};
enum { N_WORD = sizeof word / sizeof *word };

/* Append n words to text of capacity cap; the generator state determines the words. */
static size_t
put_words(char *text, size_t cap, size_t at, int32_t n, uint64_t state)
{
	for (int32_t i = 0; i < n && at + 16 < cap; i++)
		at += (size_t)snprintf(text + at, cap - at, "%s%s", at ? " " : "",
		                       word[draw(&state) % N_WORD]);
	return at;
}

/* ---- figures ---- */

typedef struct Figure {
	const char *name, *key;
	double *v;
	size_t n;
} Figure;

static double
percentile(const Figure *f, double p)
{
	if (!f->n)
		return 0;
	double at = p / 100 * (double)(f->n - 1);
	size_t lo = (size_t)at, hi = lo + 1 < f->n ? lo + 1 : lo;
	return f->v[lo] + (at - (double)lo) * (f->v[hi] - f->v[lo]);
}

static double
mean(const Figure *f)
{
	double sum = 0;

	for (size_t i = 0; i < f->n; i++)
		sum += f->v[i];
	return f->n ? sum / (double)f->n : 0;
}

/* Print a histogram of twelve bars, logarithmic if the values vary widely. */
static void
plot(const Figure *f)
{
	enum { BARS = 12, WIDE = 50 };
	size_t count[BARS] = { 0 }, most = 1;

	if (f->n < 2 || f->v[f->n - 1] <= f->v[0])
		return;
	double lo = f->v[0] > 1e-6 ? f->v[0] : 1e-6, hi = f->v[f->n - 1];
	bool by_log = hi / lo > 20;
	for (size_t i = 0; i < f->n; i++) {
		double x = f->v[i] > lo ? f->v[i] : lo;
		double at = by_log ? log(x / lo) / log(hi / lo) : (x - lo) / (hi - lo);
		int k = (int)(at * BARS);
		k = k < BARS ? k : BARS - 1;
		if (++count[k] > most)
			most = count[k];
	}
	printf("\n%s, ms\n", f->name);
	for (int k = 0; k < BARS; k++) {
		double from =
		    by_log ? lo * pow(hi / lo, (double)k / BARS) : lo + (hi - lo) * k / BARS;
		int bar = (int)((double)count[k] / (double)most * WIDE + 0.5);
		printf("  %10.1f  %-*.*s %zu\n", from * 1e3, WIDE, bar,
		       "##################################################", count[k]);
	}
}

typedef struct Report {
	Figure ttft, itl, e2e;
	size_t n, n_ok, n_good;
	int64_t prompt, fresh;
	double took;
	double drafts, drafted,
	    /* steps with draft tokens, draft tokens, accepted draft tokens; drafts 0: the server
	     * reports none */
	    accepted;
} Report;

static bool
gather(Report *rep, const LoadRequest *r, size_t n, double slo_ttft, double slo_itl)
{
	size_t n_times = 0;

	for (size_t i = 0; i < n; i++)
		n_times += r[i].ok ? (size_t)r[i].n_token : 0;
	rep->n = n;
	rep->ttft = (Figure){ "time to first token", "ttft", malloc((n + 1) * sizeof(double)), 0 };
	rep->e2e = (Figure){ "end to end", "e2e", malloc((n + 1) * sizeof(double)), 0 };
	rep->itl = (Figure){ "between tokens", "itl", malloc((n_times + 1) * sizeof(double)), 0 };
	if (!rep->ttft.v || !rep->e2e.v || !rep->itl.v)
		return false;
	for (size_t i = 0; i < n; i++) {
		const LoadRequest *q = &r[i];
		if (!q->ok)
			continue;
		rep->n_ok++;
		rep->prompt += q->prompt_tokens > 0 ? q->prompt_tokens : 0;
		rep->fresh += q->new_tokens >= 0 ? q->new_tokens : q->n_token;
		rep->ttft.v[rep->ttft.n++] = q->first - q->sent;
		rep->e2e.v[rep->e2e.n++] = q->last - q->sent;
		for (int32_t k = 1; k < q->n_token; k++)
			rep->itl.v[rep->itl.n++] = q->token_at[k] - q->token_at[k - 1];
		double per = q->n_token > 1 ? (q->last - q->first) / (q->n_token - 1) : 0;
		rep->n_good += q->first - q->sent <= slo_ttft && per <= slo_itl;
	}
	qsort(rep->ttft.v, rep->ttft.n, sizeof(double), double_order);
	qsort(rep->itl.v, rep->itl.n, sizeof(double), double_order);
	qsort(rep->e2e.v, rep->e2e.n, sizeof(double), double_order);
	return true;
}

static void
print_json(const Report *rep)
{
	const Figure *f[] = { &rep->ttft, &rep->itl, &rep->e2e };

	printf("{\"requests\":%zu,\"completed\":%zu,\"good\":%zu,\"seconds\":%.6f,\"prompt_"
	       "tokens\":%lld,\"output_tokens\":%lld,"
	       "\"request_rate\":%.4f,\"goodput\":%.4f,\"output_tps\":%.3f",
	       rep->n, rep->n_ok, rep->n_good, rep->took, (long long)rep->prompt,
	       (long long)rep->fresh, (double)rep->n_ok / rep->took,
	       (double)rep->n_good / rep->took, (double)rep->fresh / rep->took);
	if (rep->drafts > 0)
		printf(
		    ",\"drafts\":%.0f,\"drafted\":%.0f,\"accepted\":%.0f,\"accepted_length\":%.3f",
		    rep->drafts, rep->drafted, rep->accepted, 1 + rep->accepted / rep->drafts);
	for (int i = 0; i < 3; i++)
		printf(
		    ",\"%s\":{\"mean\":%.6f,\"p50\":%.6f,\"p90\":%.6f,\"p99\":%.6f,\"max\":%.6f}",
		    f[i]->key, mean(f[i]), percentile(f[i], 50), percentile(f[i], 90),
		    percentile(f[i], 99), percentile(f[i], 100));
	printf("}\n");
}

static void
print_text(const Report *rep, const LoadRequest *r, double slo_ttft, double slo_itl)
{
	const Figure *f[] = { &rep->ttft, &rep->itl, &rep->e2e };
	bool slo = slo_ttft < 1e9 || slo_itl < 1e9;

	printf("%zu of %zu requests answered in %.2f s: %.2f requests/s, %.1f output tokens/s, "
	       "%.1f prompt tokens/s\n",
	       rep->n_ok, rep->n, rep->took, (double)rep->n_ok / rep->took,
	       (double)rep->fresh / rep->took, (double)rep->prompt / rep->took);
	if (rep->drafts > 0)
		printf("speculation: %.2f tokens per drafting step, %.0f of %.0f draft tokens "
		       "accepted\n",
		       1 + rep->accepted / rep->drafts, rep->accepted, rep->drafted);
	if (slo)
		printf("goodput: %.2f requests/s within the objectives (%zu requests)\n",
		       (double)rep->n_good / rep->took, rep->n_good);
	printf("\n%-22s %10s %10s %10s %10s %10s  ms\n", "", "mean", "p50", "p90", "p99", "max");
	for (int i = 0; i < 3; i++)
		printf("%-22s %10.1f %10.1f %10.1f %10.1f %10.1f\n", f[i]->name, 1e3 * mean(f[i]),
		       1e3 * percentile(f[i], 50), 1e3 * percentile(f[i], 90),
		       1e3 * percentile(f[i], 99), 1e3 * percentile(f[i], 100));
	for (int i = 0; i < 3; i++)
		plot(f[i]);
	for (size_t i = 0, shown = 0; i < rep->n && shown < 3; i++)
		if (!r[i].ok && ++shown)
			complain("request %zu: %s", i, r[i].error);
}

/* ---- the command ---- */

typedef struct Args {
	const char *url, *key, *model, *input, *output;
	int32_t requests, clients, prefix, prefixes;
	float rate, ttft, itl, timeout;
	uint64_t seed;
	bool json, quiet, chat;
	size_t shown;
} Args;

static void
show(void *user, size_t done, size_t running)
{
	Args *a = user;
	size_t tenths = done * 10 / (size_t)a->requests;

	/* a terminal shows one line, which each answer overwrites; a file gets ten lines */
	if (a->quiet || (isatty(2) ? done == a->shown : tenths == a->shown))
		return;
	a->shown = isatty(2) ? done : tenths;
	progress("%zu of %d answered, %zu in progress", done, a->requests, running);
}

/* Make the bodies and times of all requests; the same seed gives the same load. */
static bool
make(const Args *a, const Lengths *in, const Lengths *out, LoadRequest *r)
{
	uint64_t state = a->seed + 1;
	double at = 0;

	for (int32_t i = 0; i < a->requests; i++) {
		int32_t n_in = length_of(in, &state), n_out = length_of(out, &state);
		size_t cap = (size_t)(n_in + a->prefix) * 12 + 600, n = 0;
		char *text = malloc(cap);
		r[i].body = malloc(cap + 600);
		if (!text || !r[i].body) {
			free(text);
			return false;
		}
		text[0] = 0;
		if (a->prefix)
			n = put_words(text, cap, 0, a->prefix,
			              77 + draw(&state) % (uint64_t)a->prefixes);
		put_words(text, cap, n, n_in, draw(&state));
		r[i].size = (size_t)snprintf(
		    r[i].body, cap + 600,
		    "{\"model\":\"%s\",%s%s%s,\"max_tokens\":%d,\"ignore_eos\":true,"
		    "\"temperature\":0,\"stream\":true,\"stream_options\":{\"include_usage\":true}"
		    "}",
		    a->model,
		    a->chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"" : "\"prompt\":\"",
		    text, a->chat ? "\"}]" : "\"", n_out);
		free(text);
		r[i].at = at;
		at += a->rate > 0 ? -log(uniform(&state)) / a->rate : 0;
	}
	return true;
}

/* Return the first model that /v1/models lists. */
static char *
first_model(const LoadTarget *t, const char *key, double timeout, char why[200])
{
	char path[600];
	size_t n = strstr(t->path, "/v1/") ? (size_t)(strstr(t->path, "/v1/") - t->path) : 0;

	snprintf(path, sizeof path, "%.*s/v1/models", (int)n, t->path);
	char *text = load_get(t, path, key, timeout, why);
	json_t *j = text ? json_parse(text, strlen(text), 0, NULL, NULL) : NULL;
	const char *id =
	    json_string_value(json_object_get(json_array_get(json_object_get(j, "data"), 0), "id"));
	char *name = id ? strdup(id) : NULL;
	if (text && !name)
		snprintf(why, 200, "the server lists no model at %.100s: name one with --model",
		         path);
	json_decref(j);
	free(text);
	return name;
}

/* Sum counters of /metrics over all models; a missing one adds 0. False: the server did not
 * answer. */
static bool
add_draft_counts(const LoadTarget *t, const char *key, double timeout, double sign, Report *rep)
{
	const struct {
		const char *name;
		double *to;
	} counter[] = {
		{ "\nvllm:spec_decode_num_drafts_total", &rep->drafts },
		{ "\nvllm:spec_decode_num_draft_tokens_total", &rep->drafted },
		{ "\nvllm:spec_decode_num_accepted_tokens_total", &rep->accepted },
	};
	char why[200], *text = load_get(t, "/metrics", key, timeout, why);
	const bool there = text != NULL;

	for (size_t i = 0; text && i < sizeof counter / sizeof *counter; i++)
		for (const char *at = text; (at = strstr(at, counter[i].name)) != NULL;) {
			at += strlen(counter[i].name);
			const char *value = *at == '{' ? strstr(at, "} ") : NULL;
			*counter[i].to += value ? sign * strtod(value + 2, NULL) : 0;
		}
	free(text);
	return there;
}

static int
measure(Args *a, const Lengths *in, const Lengths *out, const LoadTarget *target)
{
	LoadRequest *r = calloc((size_t)a->requests, sizeof *r);
	Report rep = { 0 };
	char why[200] = "out of memory";
	LoadOptions o = { .target = target,
		          .api_key = a->key,
		          .clients = a->rate > 0 ? 0 : a->clients,
		          .timeout = a->timeout,
		          .progress = show,
		          .user = a,
		          .stop = interrupted };
	int code = EXIT_MACHINE;

	interrupt_install();
	const bool counted = add_draft_counts(target, a->key, a->timeout, -1, &rep);
	if (r && make(a, in, out, r) && load_run(&o, r, (size_t)a->requests, &rep.took, why) &&
	    gather(&rep, r, (size_t)a->requests, a->ttft > 0 ? a->ttft : 1e9,
	           a->itl > 0 ? a->itl : 1e9)) {
		progress_end();
		if (!add_draft_counts(target, a->key, a->timeout, 1, &rep) || !counted)
			rep.drafts = rep.drafted = rep.accepted = 0;
		if (a->json)
			print_json(&rep);
		else
			print_text(&rep, r, a->ttft > 0 ? a->ttft : 1e9, a->itl > 0 ? a->itl : 1e9);
		code = interrupted() ? EXIT_INTERRUPTED : rep.n_ok == rep.n ? 0 : EXIT_CHECK;
		if (rep.n_ok == 0 && code != EXIT_INTERRUPTED) {
			complain("no request was answered: %s", r[0].error);
			code = EXIT_MACHINE;
		}
	} else {
		complain("%s", why);
	}
	for (int32_t i = 0; r && i < a->requests; i++) {
		free(r[i].body);
		free(r[i].token_at);
	}
	free(r);
	free(rep.ttft.v);
	free(rep.itl.v);
	free(rep.e2e.v);
	return code;
}

static int
bench_serve(int argc, char **argv)
{
	Args a = { .url = "http://127.0.0.1:8000",
		   .input = "128",
		   .output = "64",
		   .requests = 100,
		   .clients = 16,
		   .prefixes = 1,
		   .timeout = 600 };
	const char *args[1] = { NULL };
	const Opt opt[] = {
		{ OPT_GROUP, 0, "Server", NULL, NULL, NULL },
		{ OPT_TEXT, 'u', "url", "URL", &a.url,
		  "URL of the server [http://127.0.0.1:8000]" },
		{ OPT_TEXT, 0, "api-key", "KEY", &a.key, "API key, sent as a bearer token" },
		{ OPT_TEXT, 'm', "model", "NAME", &a.model,
		  "model name in the requests [the first that the server lists]" },
		{ OPT_FLAG, 0, "chat", NULL, &a.chat,
		  "use /v1/chat/completions instead of /v1/completions" },
		{ OPT_FLOAT, 0, "timeout", "S", &a.timeout,
		  "seconds after which a request counts as failed [600]" },
		{ OPT_GROUP, 0, "Load", NULL, NULL, NULL },
		{ OPT_INT, 'n', "requests", "N", &a.requests, "number of requests [100]" },
		{ OPT_FLOAT, 'r', "rate", "R", &a.rate,
		  "requests per second, at random times (Poisson), regardless of answers [off]" },
		{ OPT_INT, 'c', "clients", "N", &a.clients,
		  "without --rate: concurrent clients; each sends its next request after the last "
		  "answer [16]" },
		{ OPT_TEXT, 'i', "input", "LEN", &a.input,
		  "words per prompt: 128, 64..512 (uniform) or exp:256 (exponential, mean 256) "
		  "[128]" },
		{ OPT_TEXT, 'o', "output", "LEN", &a.output,
		  "new tokens per request, in the same forms [64]" },
		{ OPT_INT, 0, "prefix", "N", &a.prefix,
		  "words of a prefix that requests share [0]" },
		{ OPT_INT, 0, "prefixes", "N", &a.prefixes,
		  "number of different shared prefixes [1]" },
		{ OPT_U64, 0, "seed", "N", &a.seed,
		  "seed of prompts, lengths and times; the same seed gives the same load [0]" },
		{ OPT_GROUP, 0, "Objectives for goodput", NULL, NULL, NULL },
		{ OPT_FLOAT, 0, "ttft", "S", &a.ttft,
		  "largest time to the first token, seconds [no bound]" },
		{ OPT_FLOAT, 0, "itl", "S", &a.itl,
		  "largest mean time between tokens, seconds [no bound]" },
		{ OPT_GROUP, 0, "Output", NULL, NULL, NULL },
		{ OPT_FLAG, 0, "json", NULL, &a.json, "print one JSON document and nothing else" },
		{ OPT_FLAG, 'q', "quiet", NULL, &a.quiet, "print no progress" },
	};
	LoadTarget target;
	Lengths in, out;

	if (OPT_PARSE(&cmd_bench_serve, opt, argc, argv, args) > 0)
		return opt_usage_error(&cmd_bench_serve,
		                       "%s: unexpected argument; name the server with --url",
		                       args[0]);
	if (!load_target(a.url, a.chat ? "/v1/chat/completions" : "/v1/completions", &target))
		return opt_usage_error(&cmd_bench_serve, "--url %s: expected http://HOST:PORT",
		                       a.url);
	if (!parse_lengths(a.input, &in) || !parse_lengths(a.output, &out))
		return opt_usage_error(&cmd_bench_serve,
		                       "--input %s, --output %s: expected N, N..M or exp:N",
		                       a.input, a.output);
	if (a.requests < 1 || a.requests > 1000000 || a.clients < 1 || a.rate < 0 || a.prefix < 0 ||
	    a.prefix > 1 << 20 || a.prefixes < 1)
		return opt_usage_error(&cmd_bench_serve,
		                       "--requests, --clients, --prefixes must be at least 1, "
		                       "--rate and --prefix not negative");
	char *first = NULL;
	if (!a.model) {
		char why[200];
		a.model = first = first_model(&target, a.key, a.timeout, why);
		if (!first) {
			complain("%s", why);
			return EXIT_MACHINE;
		}
	}
	if (strpbrk(a.model, "\"\\\n"))
		return opt_usage_error(
		    &cmd_bench_serve,
		    "--model: expected a name without quotes, backslashes and line ends");
	int code = measure(&a, &in, &out, &target);
	free(first);
	return code;
}

const Command cmd_bench_serve = {
	"bench serve",
	"[--url URL] [--rate R | --clients N] [--input LEN] [--output LEN]",
	"load a server and measure throughput and latency",
	"  llmc bench serve --clients 16 --requests 200\n"
	"  llmc bench serve --url http://127.0.0.1:8000 --rate 4 --input exp:256 --output 32..128 "
	"--prefix 64 --ttft 0.5 --itl 0.05\n",
	bench_serve,
};
