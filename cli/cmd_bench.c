/* llmc bench: measures tokens/s, bytes/s and the share of the machine's read bandwidth. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/number.h"
#include "cli/cli.h"

enum { MAX_SIZES = 16, MAX_RUNS = 1000, MAX_OPS = 64, MAX_BATCH = 256 };

typedef struct Bench {
	llmc_session *s;
	int32_t *tok;
	int32_t chunk, vocab;
	float *logits;
	llmc_seq seq[MAX_BATCH];
	bool ops;                                /* also time single ops */
	int64_t expert_bytes, expert_read_bytes; /* counters of llmc_stats before the row */
	int32_t n_op;
	llmc_op_time op[MAX_OPS];
} Bench;

static void
keep_op(void *user, const llmc_op_time *t)
{
	Bench *b = user;

	if (b->n_op < MAX_OPS)
		b->op[b->n_op++] = *t;
}

/* Prefill n tokens of one sequence, in chunks. */
static llmc_status
prefill(Bench *b, llmc_seq q, int32_t n, llmc_error *err)
{
	for (int32_t at = 0; at < n;) {
		int32_t k = n - at < b->chunk ? n - at : b->chunk;
		llmc_chunk c = { .seq = q, .tok = b->tok + at, .n_tok = k, .n_out = at + k == n };
		llmc_status s = llmc_forward(b->s, &c, 1, b->logits, err);
		if (s != LLMC_OK)
			return s;
		if (interrupted())
			return LLMC_E_CANCELLED;
		at += k;
	}
	return LLMC_OK;
}

/* Decode greedily with sampling on the device. Each step is queued before the host reads the tokens
 * of the previous step. The first step is not timed, because it captures the graph that later steps
 * replay. */
static llmc_status
decode_ahead(Bench *b, int32_t batch, int32_t n, double *took, llmc_error *err)
{
	llmc_params greedy = LLMC_INIT(llmc_params);
	llmc_chunk c[MAX_BATCH];
	int32_t id[MAX_BATCH];
	llmc_status s = LLMC_OK;
	double t0 = 0;

	for (int32_t k = 0; s == LLMC_OK && k < batch; k++) {
		c[k] = (llmc_chunk){ .seq = b->seq[k], .tok = b->tok, .n_tok = 1, .n_out = 1 };
		s = llmc_sample_params(b->s, b->seq[k], &greedy, NULL, 0, err);
	}
	for (int32_t i = 0; s == LLMC_OK && i <= n; i++) {
		s = llmc_queue_step(b->s, c, (size_t)batch, err);
		if (s == LLMC_OK && i > 1)
			s = llmc_take_sampled(b->s, id, NULL, err);
		if (s == LLMC_OK && i == 0) {
			s = llmc_take_sampled(b->s, id, NULL, err);
			for (int32_t k = 0; k < batch; k++)
				c[k].tok = NULL;
			t0 = clock_now();
		}
		if (interrupted())
			s = LLMC_E_CANCELLED;
	}
	if (s == LLMC_OK)
		s = llmc_take_sampled(b->s, id, NULL, err);
	*took = clock_now() - t0;
	return s;
}

/* Run one more step, then time each of its ops. */
static llmc_status
decode_ops(Bench *b, int32_t batch, llmc_error *err)
{
	llmc_chunk c[MAX_BATCH];

	for (int32_t k = 0; k < batch; k++)
		c[k] = (llmc_chunk){ .seq = b->seq[k], .tok = b->tok, .n_tok = 1, .n_out = 1 };
	llmc_status s = llmc_forward(b->s, c, (size_t)batch, b->logits, err);
	b->n_op = 0;
	return s == LLMC_OK ? llmc_op_times(b->s, keep_op, b, err) : s;
}

/* Decode n steps of one token per sequence for `batch` sequences; *took receives the seconds. */
static llmc_status
decode(Bench *b, int32_t batch, int32_t n, bool last, double *took, llmc_error *err)
{
	llmc_chunk c[MAX_BATCH];
	llmc_status s = LLMC_OK;

	if (llmc_can_sample(b->s, NULL)) {
		s = decode_ahead(b, batch, n, took, err);
	} else {
		double t0 = clock_now();
		for (int32_t i = 0; s == LLMC_OK && i < n; i++) {
			for (int32_t k = 0; k < batch; k++)
				c[k] = (llmc_chunk){ .seq = b->seq[k],
					             .tok = &b->tok[(i + k) % b->chunk],
					             .n_tok = 1,
					             .n_out = 1 };
			s = llmc_forward(b->s, c, (size_t)batch, b->logits, err);
			if (interrupted())
				s = LLMC_E_CANCELLED;
		}
		*took = clock_now() - t0;
	}
	return s == LLMC_OK && b->ops && last ? decode_ops(b, batch, err) : s;
}

/* Bring the sequences to `depth` positions for runs of n steps: trim the sequences of the previous
 * run, or create new ones. */
static llmc_status
fill_context(Bench *b, int32_t *open, int32_t batch, int32_t depth, int32_t n, llmc_error *err)
{
	llmc_status s = LLMC_OK;
	bool kept = *open > 0;

	for (int32_t k = 0; k < *open; k++)
		kept = kept && llmc_seq_trim(b->s, b->seq[k], depth, NULL) == LLMC_OK;
	if (kept)
		return LLMC_OK;
	while (*open)
		llmc_seq_free(b->s, b->seq[--*open]);
	for (; s == LLMC_OK && *open < batch;) {
		s = llmc_seq_new(b->s, depth + n + 1 + b->ops, &b->seq[*open], err);
		if (s == LLMC_OK && depth)
			s = prefill(b, b->seq[*open], depth, err);
		*open += s == LLMC_OK;
	}
	return s;
}

static llmc_status
one_prefill(Bench *b, int32_t n, bool last, double *took, llmc_error *err)
{
	llmc_seq q;
	llmc_status s = llmc_seq_new(b->s, n, &q, err);

	if (s != LLMC_OK)
		return s;
	double t0 = clock_now();
	s = prefill(b, q, n, err);
	*took = clock_now() - t0;
	b->n_op = 0;
	if (s == LLMC_OK && b->ops && last)
		s = llmc_op_times(b->s, keep_op, b, err);
	llmc_seq_free(b->s, q);
	return s;
}

typedef struct BenchRow {
	char test[64];
	/* tokens of all sequences, and steps that produced them */
	int32_t batch, depth, tokens, steps;
	int64_t bytes; /* bytes of KV per step; report_row adds those of weights */
} BenchRow;

/* Format a share of the memory bandwidth. A share above 1 means that weights come from caches, so
 * it does not measure memory. */
static const char *
share_text(double share, char buf[16])
{
	if (share > 1)
		return "cache";
	snprintf(buf, 16, "%.0f %%", 100 * share);
	return buf;
}

/* Print per op: launches and time per step, its share of all ops, the weights and KV that it reads,
 * and its arithmetic. */
static void
report_ops(const Bench *b, bool json, double bandwidth)
{
	double all = 0;

	for (int32_t i = 0; i < b->n_op; i++)
		all += b->op[i].seconds;
	for (int32_t i = 0; i < b->n_op; i++) {
		const llmc_op_time *t = &b->op[i];
		int64_t bytes = t->weight_bytes + t->cache_bytes;
		double seconds = t->seconds > 0 ? t->seconds : 1e-9, rate = (double)bytes / seconds;
		if (json) {
			printf("%s{\"op\":\"%s\",\"n\":%d,\"s\":%.9f,\"weight_bytes\":%lld,\"cache_"
			       "bytes\":%lld,\"ops\":%lld,\"cublaslt\":%s}",
			       i ? "," : "", t->op, t->n, t->seconds, (long long)t->weight_bytes,
			       (long long)t->cache_bytes, (long long)t->ops,
			       t->library ? "true" : "false");
			continue;
		}
		char name[64], share[16];
		snprintf(name, sizeof name, "%s%s", t->op, t->library ? " (cuBLASLt)" : "");
		printf("  %-24s %5d x %9.2f us = %9.3f ms %4.0f %%", name, t->n,
		       1e6 * t->seconds / t->n, 1e3 * t->seconds,
		       100 * t->seconds / (all > 0 ? all : 1));
		if (bytes && bandwidth > 0)
			printf(" %8.1f GB/s %9s", rate / 1e9, share_text(rate / bandwidth, share));
		if (t->ops)
			printf("%*s %8.1f GOP/s", bytes ? 0 : 24, "",
			       (double)t->ops / seconds / 1e9);
		printf("\n");
	}
}

static void
report(Bench *b, bool json, bool first, BenchRow *r, double *took, int32_t runs, double bandwidth)
{
	llmc_stats stats = LLMC_INIT(llmc_stats);
	double mean = 0, var = 0, seconds = 0;

	for (int32_t i = 0; i < runs; i++) {
		mean += r->tokens / took[i] / runs;
		seconds += took[i] / runs;
	}
	for (int32_t i = 0; i < runs; i++)
		var += pow(r->tokens / took[i] - mean, 2) / (runs > 1 ? runs - 1 : 1);
	llmc_session_stats(b->s, &stats);
	/* bytes of experts in a mapped file, since the previous row */
	const int64_t chosen = stats.expert_bytes - b->expert_bytes,
	              absent = stats.expert_read_bytes - b->expert_read_bytes;
	const double hits = chosen > 0 ? 1 - (double)absent / (double)chosen : 1;
	b->expert_bytes = stats.expert_bytes;
	b->expert_read_bytes = stats.expert_read_bytes;
	r->bytes += stats.weight_bytes; /* for a MoE model, the experts that these rows select */
	double gbps = (double)r->bytes * r->steps / seconds / 1e9;
	qsort(took, (size_t)runs, sizeof *took, double_order);
	if (json) {
		printf("%s{\"test\":\"%s\",\"tps\":%.3f,\"tps_stddev\":%.3f,\"gbps\":%.3f,\"bw_"
		       "fraction\":%.4f,\"batch\":%d,\"depth\":%d,\"tokens\":%d,"
		       "\"steps\":%d,\"step_s\":%.9f,\"bytes\":%lld",
		       first ? "" : ",", r->test, mean, sqrt(var), gbps,
		       bandwidth > 0 ? gbps * 1e9 / bandwidth : 0, r->batch, r->depth, r->tokens,
		       r->steps, took[runs / 2] / r->steps, (long long)r->bytes);
		if (chosen > 0)
			printf(",\"expert_hits\":%.4f", hits);
		if (b->n_op) {
			printf(",\"ops\":[");
			report_ops(b, true, bandwidth);
			printf("]");
		}
		printf("}");
	} else {
		progress_end();
		char share[16];
		printf("%-14s %10.1f ± %-8.1f %8.1f GB/s %9s", r->test, mean, sqrt(var), gbps,
		       share_text(bandwidth > 0 ? gbps * 1e9 / bandwidth : 0, share));
		if (chosen > 0)
			printf("  experts in memory %.1f %%", 100 * hits);
		printf("\n");
		report_ops(b, false, bandwidth);
	}
	fflush(stdout);
}

/* Command line, with the largest value of each list */
typedef struct BenchArgs {
	Common c;
	const char *path;
	int32_t runs, prefill[MAX_SIZES], decode[MAX_SIZES], batch[MAX_SIZES], depth[MAX_SIZES];
	size_t n_prefill, n_decode, n_batch, n_depth;
	int32_t most_prefill, most_decode, most_batch, most_depth;
} BenchArgs;

static int32_t
largest(const int32_t *v, size_t n, int32_t least)
{
	for (size_t i = 0; i < n; i++)
		least = v[i] > least ? v[i] : least;
	return least;
}

static int
parse(int argc, char **argv, BenchArgs *a, bool *ops)
{
	const char *p_text = "512", *n_text = "128", *b_text = "1", *d_text = "0",
	           *args[1] = { NULL };
	const Opt opt[] = {
		{ OPT_GROUP, 0, "Bench", NULL, NULL, NULL },
		{ OPT_TEXT, 'p', "prefill", "N,..", &p_text,
		  "prompt lengths to prefill; 0: none [512]" },
		{ OPT_TEXT, 'n', "decode", "N,..", &n_text, "tokens to decode; 0: none [128]" },
		{ OPT_TEXT, 'b', "batch", "B,..", &b_text, "sequences decoded at once [1]" },
		{ OPT_TEXT, 'd', "depth", "N,..", &d_text,
		  "positions in the cache before decoding [0]" },
		{ OPT_INT, 'r', "runs", "N", &a->runs, "repetitions [5]" },
		{ OPT_FLAG, 0, "ops", NULL, ops, "after each row, list the time of each op" },
		OPT_FIT(a->c),
		OPT_COMMON(a->c),
	};

	a->runs = 5;
	if (OPT_PARSE(&cmd_bench, opt, argc, argv, args) == 0)
		return opt_usage_error(&cmd_bench, NO_MODEL);
	a->path = args[0];
	if (!parse_sizes(p_text, a->prefill, MAX_SIZES, &a->n_prefill) ||
	    !parse_sizes(n_text, a->decode, MAX_SIZES, &a->n_decode) ||
	    !parse_sizes(b_text, a->batch, MAX_SIZES, &a->n_batch) ||
	    !parse_sizes(d_text, a->depth, MAX_SIZES, &a->n_depth) || a->runs < 1 ||
	    a->runs > MAX_RUNS)
		return opt_usage_error(
		    &cmd_bench,
		    "-p, -n, -b, -d take lists such as 128,512; -r a number from 1 to %d",
		    MAX_RUNS);
	for (size_t i = 0; i < a->n_batch; i++)
		if (a->batch[i] < 1 || a->batch[i] > MAX_BATCH)
			return opt_usage_error(&cmd_bench, "-b %d: expected 1 to %d", a->batch[i],
			                       MAX_BATCH);
	a->most_prefill = largest(a->prefill, a->n_prefill, 1);
	a->most_decode = largest(a->decode, a->n_decode, 0);
	a->most_batch = largest(a->batch, a->n_batch, 1);
	a->most_depth = largest(a->depth, a->n_depth, 0);
	return 0;
}

/* Limits of a session for these runs. Reserves only as much KV cache as they need, which is less
 * than seqs * context.
 */
static llmc_limits
bench_limits(const BenchArgs *a, int32_t longest, bool ops)
{
	enum { PAGE = 64 };
	llmc_limits lim = limits_of(&a->c);
	int64_t together = (int64_t)a->most_batch *
	                   ((a->most_depth + a->most_decode + 2 + PAGE) / PAGE * PAGE),
	        alone = (a->most_prefill + PAGE) / PAGE * PAGE;

	lim.context = lim.context ? lim.context : longest + 1 + ops;
	lim.seqs = lim.seqs ? lim.seqs : a->most_batch;
	lim.chunk = lim.chunk ? lim.chunk : 512;
	lim.kv_tokens = together > alone ? together : alone;
	return lim;
}

/* Open the session and allocate tokens and logits. */
static llmc_status
bench_open(Bench *b, const BenchArgs *a, llmc_model *m, llmc_memory *mem, llmc_error *err)
{
	int32_t until = a->most_depth + a->most_decode,
	        longest = a->most_prefill > until ? a->most_prefill : until;
	llmc_limits lim = bench_limits(a, longest, b->ops);

	b->chunk = lim.chunk;
	llmc_status s = check_memory(m, &a->c, &lim, err);
	if (s == LLMC_OK)
		s = llmc_session_open(m, &lim, &b->s, err);
	if (s == LLMC_OK)
		s = llmc_memory_for(m, &lim, mem, err);
	if (s != LLMC_OK)
		return s;
	size_t n_tok = (size_t)(longest > b->chunk ? longest : b->chunk) + 1;
	b->tok = malloc(n_tok * sizeof *b->tok);
	b->logits = malloc((size_t)a->most_batch * (size_t)b->vocab * sizeof *b->logits);
	if (!b->tok || !b->logits) {
		snprintf(err->text, sizeof err->text, "out of memory");
		return err->code = LLMC_E_MEMORY;
	}
	for (size_t i = 0; i < n_tok; i++)
		b->tok[i] = (int32_t)((int64_t)(i * 7919 + 13) % b->vocab);
	return LLMC_OK;
}

static void
show_run(const BenchArgs *a, const BenchRow *row, int32_t run)
{
	if (!a->c.json && !a->c.quiet)
		progress("%s %d/%d", row->test, run + 1, a->runs);
}

/* Measure prefill of n tokens; run -1 warms up. */
static llmc_status
prefill_row(Bench *b, const BenchArgs *a, int32_t n, double *took, BenchRow *row, llmc_error *err)
{
	llmc_status s = LLMC_OK;

	*row = (BenchRow){ .batch = 1, .tokens = n, .steps = (n + b->chunk - 1) / b->chunk };
	snprintf(row->test, sizeof row->test, "pp%d", n);
	for (int32_t r = -1; s == LLMC_OK && r < a->runs; r++) {
		show_run(a, row, r);
		s = one_prefill(b, n, r == a->runs - 1, &took[r < 0 ? 0 : r], err);
	}
	return s;
}

/* Measure n decode steps of `batch` sequences at `depth` positions; run -1 warms up. */
static llmc_status
decode_row(Bench *b, const BenchArgs *a, int32_t n, int32_t batch, int32_t depth,
           int64_t kv_per_token, double *took, BenchRow *row, llmc_error *err)
{
	llmc_status s = LLMC_OK;
	int32_t open = 0;

	*row = (BenchRow){ .batch = batch,
		           .depth = depth,
		           .tokens = n * batch,
		           .steps = n,
		           .bytes = (int64_t)batch * (depth + n / 2) * kv_per_token };
	int at = snprintf(row->test, sizeof row->test, "tg%d", n);
	if (batch > 1)
		at += snprintf(row->test + at, sizeof row->test - (size_t)at, " b%d", batch);
	if (depth)
		snprintf(row->test + at, sizeof row->test - (size_t)at, " @ d%d", depth);
	for (int32_t r = -1; s == LLMC_OK && r < a->runs; r++) {
		show_run(a, row, r);
		s = fill_context(b, &open, batch, depth, n, err);
		if (s == LLMC_OK)
			s = decode(b, batch, n, r == a->runs - 1, &took[r < 0 ? 0 : r], err);
	}
	while (open)
		llmc_seq_free(b->s, b->seq[--open]);
	return s;
}

/* Measure and report all rows. */
static llmc_status
measure(Bench *b, const BenchArgs *a, int64_t kv_per_token, double bandwidth, llmc_error *err)
{
	double took[MAX_RUNS];
	llmc_status s = LLMC_OK;
	bool first = true;
	BenchRow row;

	for (size_t i = 0; s == LLMC_OK && i < a->n_prefill; i++) {
		if (a->prefill[i] == 0)
			continue;
		s = prefill_row(b, a, a->prefill[i], took, &row, err);
		if (s == LLMC_OK)
			report(b, a->c.json, first, &row, took, a->runs, bandwidth);
		first = false;
	}
	size_t n_row = a->n_depth * a->n_batch * a->n_decode; /* decode lengths vary fastest */
	for (size_t i = 0; s == LLMC_OK && i < n_row; i++) {
		int32_t n = a->decode[i % a->n_decode],
		        batch = a->batch[i / a->n_decode % a->n_batch],
		        depth = a->depth[i / a->n_decode / a->n_batch];
		if (n == 0)
			continue;
		s = decode_row(b, a, n, batch, depth, kv_per_token, took, &row, err);
		if (s == LLMC_OK)
			report(b, a->c.json, first, &row, took, a->runs, bandwidth);
		first = false;
	}
	return s;
}

/* Run with an open model; open_s: seconds that opening took. */
static llmc_status
bench_model(Bench *b, const BenchArgs *a, llmc_model *m, double open_s, llmc_error *err)
{
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	llmc_memory mem = LLMC_INIT(llmc_memory);
	double bandwidth = 0, first = 0;

	llmc_info(m, &info);
	b->vocab = info.vocab;
	llmc_status s = bench_open(b, a, m, &mem, err);
	if (s == LLMC_OK) {
		bandwidth = llmc_bandwidth_of(m, a->c.threads, 0.5);
		/* the first prefill touches all memory; its time plus the open time is the time to
		 * the first token */
		s = one_prefill(b, 1, false, &first, err);
	}
	if (a->c.json)
		printf("{\"model\":\"%s\",\"target\":\"%s\",\"bandwidth_gbps\":%.3f,\"open_s\":%."
		       "4f,\"first_token_s\":%.4f,\"results\":[",
		       info.name, info.target, bandwidth / 1e9, open_s, open_s + first);
	else if (s == LLMC_OK)
		printf("%s on %s; read bandwidth %.1f GB/s; first token after %.2f s\n%-14s %10s   "
		       "%-8s "
		       "%10s %11s\n",
		       info.name, info.target, bandwidth / 1e9, open_s + first, "test", "tokens/s",
		       "", "streamed", "of reads");
	if (s == LLMC_OK)
		s = measure(b, a, mem.kv_per_token, bandwidth, err);
	if (a->c.json)
		printf("]}\n");
	progress_end();
	return s;
}

static int
bench(int argc, char **argv)
{
	BenchArgs a = { 0 };
	Bench b = { 0 };
	llmc_error err = { 0 };
	llmc_model *m = NULL;

	if (argc > 1 && strcmp(argv[1], "serve") == 0)
		return cmd_bench_serve.run(argc - 1, argv + 1);
	if (argc > 1 && strcmp(argv[1], "mla") == 0)
		return cmd_bench_mla.run(argc - 1, argv + 1);
	int code = parse(argc, argv, &a, &b.ops);
	if (code)
		return code;
	interrupt_install();
	double t0 = clock_now();
	llmc_status s = open_model(&a.c, a.path, false, &m, &err);
	if (s == LLMC_OK)
		s = bench_model(&b, &a, m, clock_now() - t0, &err);
	free(b.tok);
	free(b.logits);
	llmc_session_close(b.s);
	llmc_close(m);
	free(a.c.set.v);
	if (s == LLMC_E_CANCELLED)
		return EXIT_INTERRUPTED;
	return s == LLMC_OK ? 0 : fail_with(&err);
}

const Command cmd_bench = {
	"bench",
	"MODEL [-p 512] [-n 128] [-b 1,8] [-d 2048] [-r 5] [--ops]",
	"measure tokens/s, bytes/s and the share of the machine's bandwidth",
	"  llmc bench model.gguf\n"
	"  llmc bench model.gguf -p 0 -n 64 -b 1,4,8 --json\n"
	"  llmc bench model.gguf --ops\n"
	"  llmc bench mla model.gguf\n"
	"  llmc bench configs/llama3-8b.yaml --random-weights -p 128 -n 16 -r 1\n"
	"  llmc bench configs/llama3-8b.yaml --random-weights --device cuda --ops\n",
	bench,
};
