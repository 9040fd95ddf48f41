/* llmc bench: measure tokens/s, bytes/s and the share of the machine's read bandwidth. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "cli/cli.h"

enum { MAX_SIZES = 16, MAX_RUNS = 1000, MAX_OPS = 64 };

typedef struct Bench {
	llmc_session *s;
	int32_t *tok;
	int32_t chunk, vocab;
	float *logits;
	llmc_seq seq[256];
	bool ops; /* also time single ops */
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

/* Decode with sampling on the device: greedy, each step queued before the tokens of the one
 * before it are read. The first step is not timed, because it captures the graph that later ones
 * replay. */
static llmc_status
decode_ahead(Bench *b, int32_t batch, int32_t n, double *took, llmc_error *err)
{
	llmc_params greedy = LLMC_INIT(llmc_params);
	llmc_chunk c[256];
	int32_t id[256];
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
			t0 = now();
		}
		if (interrupted())
			s = LLMC_E_CANCELLED;
	}
	if (s == LLMC_OK)
		s = llmc_take_sampled(b->s, id, NULL, err);
	*took = now() - t0;
	return s;
}

/* Run one more step, then time each of its ops. */
static llmc_status
decode_ops(Bench *b, int32_t batch, llmc_error *err)
{
	llmc_chunk c[256];

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
	llmc_chunk c[256];
	llmc_status s = LLMC_OK;

	if (llmc_can_sample(b->s, NULL)) {
		s = decode_ahead(b, batch, n, took, err);
	} else {
		double t0 = now();
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
		*took = now() - t0;
	}
	return s == LLMC_OK && b->ops && last ? decode_ops(b, batch, err) : s;
}

/* Bring the sequences to `depth` positions for runs of n steps: trim those of the run before, or
 * create new ones. */
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
	double t0 = now();
	s = prefill(b, q, n, err);
	*took = now() - t0;
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
	int64_t bytes; /* bytes of KV per step; in the report also of weights */
} BenchRow;

/* Format a share of the memory bandwidth. More than 1 means that caches serve the weights, so the
 * share does not measure memory. */
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
report(const Bench *b, bool json, bool first, BenchRow *r, double *took, int32_t runs,
       double bandwidth)
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
		if (b->n_op) {
			printf(",\"ops\":[");
			report_ops(b, true, bandwidth);
			printf("]");
		}
		printf("}");
	} else {
		progress_end();
		char share[16];
		printf("%-14s %10.1f ± %-8.1f %8.1f GB/s %9s\n", r->test, mean, sqrt(var), gbps,
		       share_text(bandwidth > 0 ? gbps * 1e9 / bandwidth : 0, share));
		report_ops(b, false, bandwidth);
	}
	fflush(stdout);
}

static int
bench(int argc, char **argv)
{
	Common c = { 0 };
	if (argc > 1 && strcmp(argv[1], "serve") == 0)
		return cmd_bench_serve.run(argc - 1, argv + 1);
	if (argc > 1 && strcmp(argv[1], "mla") == 0)
		return cmd_bench_mla.run(argc - 1, argv + 1);
	const char *p_text = "512", *n_text = "128", *b_text = "1", *d_text = "0",
	           *args[1] = { NULL };
	int32_t runs = 5, p[MAX_SIZES], n[MAX_SIZES], bt[MAX_SIZES], d[MAX_SIZES];
	size_t np = 0, nn = 0, nb = 0, nd = 0;
	Bench b = { 0 };
	const Opt opt[] = {
		{ OPT_GROUP, 0, "Bench", NULL, NULL, NULL },
		{ OPT_TEXT, 'p', "prefill", "N,..", &p_text,
		  "prompt lengths to prefill; 0: none [512]" },
		{ OPT_TEXT, 'n', "decode", "N,..", &n_text, "tokens to decode; 0: none [128]" },
		{ OPT_TEXT, 'b', "batch", "B,..", &b_text, "sequences decoded at once [1]" },
		{ OPT_TEXT, 'd', "depth", "N,..", &d_text,
		  "positions in the cache before decoding [0]" },
		{ OPT_INT, 'r', "runs", "N", &runs, "repetitions [5]" },
		{ OPT_FLAG, 0, "ops", NULL, &b.ops, "after each row, list the time of each op" },
		OPT_COMMON(c),
	};
	llmc_error err = { 0 };
	llmc_model *m = NULL;
	double took[MAX_RUNS];
	llmc_memory mem = LLMC_INIT(llmc_memory);

	if (OPT_PARSE(&cmd_bench, opt, argc, argv, args) == 0)
		return opt_usage_error(&cmd_bench, "name a model");
	if (!parse_sizes(p_text, p, MAX_SIZES, &np) || !parse_sizes(n_text, n, MAX_SIZES, &nn) ||
	    !parse_sizes(b_text, bt, MAX_SIZES, &nb) || !parse_sizes(d_text, d, MAX_SIZES, &nd) ||
	    runs < 1 || runs > MAX_RUNS)
		return opt_usage_error(
		    &cmd_bench,
		    "-p, -n, -b, -d take lists such as 128,512; -r a number from 1 to %d",
		    MAX_RUNS);
	int32_t most_p = 1, most_n = 0, most_b = 1, most_d = 0;
	for (size_t i = 0; i < np; i++)
		most_p = p[i] > most_p ? p[i] : most_p;
	for (size_t i = 0; i < nn; i++)
		most_n = n[i] > most_n ? n[i] : most_n;
	for (size_t i = 0; i < nb; i++) {
		if (bt[i] < 1 || bt[i] > 256)
			return opt_usage_error(&cmd_bench, "-b %d: expected 1 to 256", bt[i]);
		most_b = bt[i] > most_b ? bt[i] : most_b;
	}
	for (size_t i = 0; i < nd; i++)
		most_d = d[i] > most_d ? d[i] : most_d;
	interrupt_install();
	double t0 = now();
	llmc_status s = open_model(&c, args[0], false, &m, &err);
	if (s != LLMC_OK)
		return fail_with(&err);
	double open_s = now() - t0;
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	llmc_info(m, &info);
	llmc_limits lim = limits_of(&c);
	int32_t longest = most_p > most_d + most_n ? most_p : most_d + most_n;
	lim.context = lim.context ? lim.context : longest + 1 + b.ops;
	lim.seqs = lim.seqs ? lim.seqs : most_b;
	lim.chunk = lim.chunk ? lim.chunk : 512;
	/* reserve KV for the runs below, which is less than seqs * context */
	int64_t page = 64,
	        together = (int64_t)most_b * ((most_d + most_n + 2 + page) / page * page);
	lim.kv_tokens =
	    together > (most_p + page) / page * page ? together : (most_p + page) / page * page;
	b.chunk = lim.chunk;
	b.vocab = info.vocab;
	s = check_memory(m, &c, &lim, &err);
	if (s == LLMC_OK)
		s = llmc_session_open(m, &lim, &b.s, &err);
	if (s == LLMC_OK)
		s = llmc_memory_for(m, &lim, &mem, &err);
	size_t n_tok = (size_t)(longest > b.chunk ? longest : b.chunk) + 1;
	b.tok = malloc(n_tok * sizeof *b.tok);
	b.logits = malloc((size_t)most_b * (size_t)info.vocab * sizeof *b.logits);
	if (s == LLMC_OK && (!b.tok || !b.logits)) {
		err.code = s = LLMC_E_MEMORY;
		snprintf(err.text, sizeof err.text, "out of memory");
	}
	for (size_t i = 0; b.tok && i < n_tok; i++)
		b.tok[i] = (int32_t)((int64_t)(i * 7919 + 13) % info.vocab);
	double bandwidth = s == LLMC_OK ? llmc_bandwidth_of(m, c.threads, 0.5) : 0, first = 0;
	if (s == LLMC_OK)
		s = one_prefill(
		    &b, 1, false, &first,
		    /* first touch of all memory; open time + this is the time to first token */
		    &err);
	if (c.json)
		printf("{\"model\":\"%s\",\"target\":\"%s\",\"bandwidth_gbps\":%.3f,\"open_s\":%."
		       "4f,\"first_token_s\":%.4f,\"results\":[",
		       info.name, info.target, bandwidth / 1e9, open_s, open_s + first);
	else if (s == LLMC_OK)
		printf("%s on %s; read bandwidth %.1f GB/s; first token after %.2f s\n%-14s %10s   "
		       "%-8s "
		       "%10s %11s\n",
		       info.name, info.target, bandwidth / 1e9, open_s + first, "test", "tokens/s",
		       "", "streamed", "of reads");
	bool first_row = true;
	for (size_t i = 0; s == LLMC_OK && i < np; i++) {
		BenchRow row = { .batch = 1,
			         .tokens = p[i],
			         .steps = (p[i] + b.chunk - 1) / b.chunk };
		if (p[i] == 0)
			continue;
		snprintf(row.test, sizeof row.test, "pp%d", p[i]);
		for (int32_t r = -1; s == LLMC_OK && r < runs; r++) { /* run -1 warms up */
			if (!c.json && !c.quiet)
				progress("%s %d/%d", row.test, r + 1, runs);
			s = one_prefill(&b, p[i], r == runs - 1, &took[r < 0 ? 0 : r], &err);
		}
		if (s == LLMC_OK)
			report(&b, c.json, first_row, &row, took, runs, bandwidth);
		first_row = false;
	}
	for (size_t k = 0; s == LLMC_OK && k < nd; k++)
		for (size_t j = 0; s == LLMC_OK && j < nb; j++)
			for (size_t i = 0; s == LLMC_OK && i < nn; i++) {
				BenchRow row = { .batch = bt[j],
					         .depth = d[k],
					         .tokens = n[i] * bt[j],
					         .steps = n[i],
					         .bytes = (int64_t)bt[j] * (d[k] + n[i] / 2) *
					                  mem.kv_per_token };
				if (n[i] == 0)
					continue;
				int at = snprintf(row.test, sizeof row.test, "tg%d", n[i]);
				if (bt[j] > 1)
					at += snprintf(row.test + at, sizeof row.test - (size_t)at,
					               " b%d", bt[j]);
				if (d[k])
					snprintf(row.test + at, sizeof row.test - (size_t)at,
					         " @ d%d", d[k]);
				int32_t open = 0;
				for (int32_t r = -1; s == LLMC_OK && r < runs; r++) {
					if (!c.json && !c.quiet)
						progress("%s %d/%d", row.test, r + 1, runs);
					s = fill_context(&b, &open, bt[j], d[k], n[i], &err);
					if (s == LLMC_OK)
						s = decode(&b, bt[j], n[i], r == runs - 1,
						           &took[r < 0 ? 0 : r], &err);
				}
				while (open)
					llmc_seq_free(b.s, b.seq[--open]);
				if (s == LLMC_OK)
					report(&b, c.json, first_row, &row, took, runs, bandwidth);
				first_row = false;
			}
	if (c.json)
		printf("]}\n");
	progress_end();
	free(b.tok);
	free(b.logits);
	llmc_session_close(b.s);
	llmc_close(m);
	free(c.set.v);
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
