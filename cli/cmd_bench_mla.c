/* llmc bench mla: times a latent attention module by itself, absorbed versus expanded. One layer of
 * the model is compiled in each form. The result is the time of all ops from the query and latent
 * projections to the output projection, in a decode step at a given depth. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { MAX_SIZES = 16, MAX_SEQS = 256, MAX_OPS = 32, FORMS = 2 };

static const char *const form_name[FORMS] = { "absorbed", "expanded" };

typedef struct Ops {
	int n;
	llmc_op_time op[MAX_OPS];
} Ops;

typedef struct Sizes {
	int32_t v[MAX_SIZES];
	size_t n;
} Sizes;

typedef struct Module {
	Common c;
	Sizes depth, batch;
	int32_t most_depth, most_batch;
	char target[64], name[128];
	bool alone;                                  /* the target has only the absorbed form */
	double seconds[FORMS][MAX_SIZES][MAX_SIZES]; /* [form][batch][depth] */
} Module;

static void
keep(void *user, const llmc_op_time *t)
{
	Ops *o = user;

	if (o->n < MAX_OPS)
		o->op[o->n++] = *t;
}

/* Sum the ops after the embedding, up to the GEMV after the last op of latent attention. An op that
 * other parts of the layer also run is counted once. */
static double
module_seconds(const Ops *o)
{
	double sum = 0;
	int last = -1;

	for (int i = 0; i < o->n; i++)
		if (strncmp(o->op[i].op, "mla_", 4) == 0)
			last = i;
	for (int i = 1; i <= last + 1 && i < o->n; i++)
		sum += o->op[i].seconds / o->op[i].n *
		       (strncmp(o->op[i].op, "mla_", 4) && i == last + 1 ? 1 : o->op[i].n);
	return last < 0 ? -1 : sum;
}

/* Save a sequence of most_depth positions as bytes, from which others are loaded into pages of
 * their own. */
static llmc_status
fill(llmc_session *s, const Module *m, int32_t vocab, void **bytes, size_t *n, llmc_error *err)
{
	int32_t tok[512];
	llmc_seq q;

	for (int32_t i = 0; i < 512; i++)
		tok[i] = (int32_t)(((int64_t)i * 7919 + 13) % vocab);
	llmc_status st = llmc_seq_new(s, m->most_depth + 1, &q, err);
	for (int32_t at = 0; st == LLMC_OK && at < m->most_depth; at += 512) {
		int32_t k = m->most_depth - at < 512 ? m->most_depth - at : 512;
		st = llmc_forward(s, &(llmc_chunk){ .seq = q, .tok = tok, .n_tok = k, .n_out = 0 },
		                  1, NULL, err);
		if (st == LLMC_OK && interrupted())
			st = LLMC_E_CANCELLED;
	}
	if (st != LLMC_OK)
		return st;
	(void)llmc_seq_save(s, q, NULL, 0, n, NULL);
	*bytes = malloc(*n);
	if (!*bytes) {
		err->code = LLMC_E_MEMORY;
		snprintf(err->text, sizeof err->text, "out of memory");
		return LLMC_E_MEMORY;
	}
	st = llmc_seq_save(s, q, *bytes, *n, n, err);
	llmc_seq_free(s, q);
	return st;
}

static llmc_status
measure(llmc_session *s, int32_t batch, int32_t depth, const void *bytes, size_t n, double *seconds,
        llmc_error *err)
{
	llmc_chunk c[MAX_SEQS];
	llmc_status st = LLMC_OK;
	const int32_t tok = 1;
	int32_t open = 0;
	Ops ops = { 0 };

	for (; st == LLMC_OK && open < batch; open += st == LLMC_OK) {
		c[open] = (llmc_chunk){ .tok = &tok, .n_tok = 1, .n_out = 0 };
		st = llmc_seq_load(s, bytes, n, &c[open].seq, err);
		if (st == LLMC_OK)
			st = llmc_seq_trim(s, c[open].seq, depth, err);
	}
	if (st == LLMC_OK)
		st = llmc_forward(s, c, (size_t)batch, NULL, err);
	if (st == LLMC_OK)
		st = llmc_op_times(s, keep, &ops, err);
	while (open)
		llmc_seq_free(s, c[--open].seq);
	*seconds = module_seconds(&ops);
	return st == LLMC_OK && interrupted() ? LLMC_E_CANCELLED : st;
}

/* True if the plan uses this form; a target may lack kernels for the expanded one. */
static bool
has_form(const llmc_model *m, int form)
{
	const char *plan = llmc_plan_json(m);

	return form == 0 || (plan && strstr(plan, "\"expand\":1,"));
}

static llmc_status
one_form(Module *m, int form, const char *path, llmc_error *err)
{
	char one[] = "n_layers=1", as[64];
	const char **set = calloc(m->c.set.n + 3, sizeof *set);
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	llmc_session *s = NULL;
	llmc_model *model = NULL;
	void *bytes = NULL;
	size_t n = 0;

	snprintf(as, sizeof as, "attention.form=%s", form_name[form]);
	Common c = m->c;
	if (!set) {
		err->code = LLMC_E_MEMORY;
		snprintf(err->text, sizeof err->text, "out of memory");
		return LLMC_E_MEMORY;
	}
	for (size_t i = 0; i < m->c.set.n; i++)
		set[i] = m->c.set.v[i];
	set[m->c.set.n] = one;
	set[m->c.set.n + 1] = as;
	c.set = (List){ set, m->c.set.n + 2 };
	llmc_status st = open_model(&c, path, false, &model, err);
	if (st == LLMC_OK)
		llmc_info(model, &info);
	llmc_limits lim = limits_of(&c);
	lim.context = m->most_depth + 2;
	lim.seqs = m->most_batch + 1;
	lim.chunk = 512;
	lim.kv_tokens = (int64_t)(m->most_batch + 1) * ((m->most_depth + 64) / 32 * 32);
	if (st == LLMC_OK) {
		snprintf(m->target, sizeof m->target, "%s", info.target);
		snprintf(m->name, sizeof m->name, "%s", info.name);
		m->alone = !has_form(model, form);
	}
	if (m->alone) {
		llmc_close(model);
		free(set);
		return LLMC_OK;
	}
	if (st == LLMC_OK)
		st = check_memory(model, &c, &lim, err);
	if (st == LLMC_OK)
		st = llmc_session_open(model, &lim, &s, err);
	if (st == LLMC_OK && !c.json && !c.quiet)
		progress("%s: a cache of %d positions", form_name[form], m->most_depth);
	if (st == LLMC_OK)
		st = fill(s, m, info.vocab, &bytes, &n, err);
	for (size_t b = 0; st == LLMC_OK && b < m->batch.n; b++)
		for (size_t d = 0; st == LLMC_OK && d < m->depth.n; d++) {
			if (!c.json && !c.quiet)
				progress("%s: %d sequences at depth %d", form_name[form],
				         m->batch.v[b], m->depth.v[d]);
			st = measure(s, m->batch.v[b], m->depth.v[d], bytes, n,
			             &m->seconds[form][b][d], err);
		}
	if (s)
		llmc_session_close(s);
	if (model)
		llmc_close(model);
	free(bytes);
	free(set);
	return st;
}

static void
report(const Module *m)
{
	if (m->c.json)
		printf("{\"model\":\"%s\",\"target\":\"%s\",\"results\":[", m->name, m->target);
	else
		printf("%s on %s: the attention module of one layer in a decode step\n%9s %7s %13s "
		       "%13s %9s\n",
		       m->name, m->target, "sequences", "depth", form_name[0], form_name[1],
		       "speedup");
	for (size_t b = 0; b < m->batch.n; b++)
		for (size_t d = 0; d < m->depth.n; d++) {
			double absorbed = m->seconds[0][b][d], expanded = m->seconds[1][b][d];
			if (m->c.json)
				printf("%s{\"sequences\":%d,\"depth\":%d,\"absorbed_s\":%.9f",
				       b + d ? "," : "", m->batch.v[b], m->depth.v[d], absorbed);
			else
				printf("%9d %7d %10.1f us", m->batch.v[b], m->depth.v[d],
				       1e6 * absorbed);
			if (m->alone)
				printf("%s", m->c.json ? ",\"expanded_s\":null,\"speedup\":null}"
				                       : "             -         -\n");
			else if (m->c.json)
				printf(",\"expanded_s\":%.9f,\"speedup\":%.3f}", expanded,
				       expanded / absorbed);
			else
				printf(" %10.1f us %7.2f x\n", 1e6 * expanded, expanded / absorbed);
		}
	if (m->c.json)
		printf("]}\n");
	else if (m->alone)
		printf("%s has only absorbed kernels for decode steps of this shape: there is no "
		       "expanded form to compare with\n",
		       m->target);
	else
		printf("published of the DeepSeek-V2 module's own kernels, one sequence and 32: "
		       "20.4 x and 3.63 x on an A100, 26.2 x and 3.52 x on an RTX 4080\n");
}

static int32_t
most_of(const Sizes *s)
{
	int32_t most = 0;

	for (size_t i = 0; i < s->n; i++)
		most = s->v[i] > most ? s->v[i] : most;
	return most;
}

static bool
all_within(const Sizes *s, int32_t least, int32_t most)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->v[i] < least || s->v[i] > most)
			return false;
	return s->n > 0;
}

static int
bench_mla(int argc, char **argv)
{
	Module *m = calloc(1, sizeof *m);
	const char *b_text = "1,32", *d_text = "512,2048,8192,16384", *args[1] = { NULL };
	llmc_error err = { 0 };
	llmc_status st = LLMC_OK;

	if (!m) {
		complain("out of memory");
		return EXIT_MACHINE;
	}
	const Opt opt[] = {
		{ OPT_GROUP, 0, "Bench", NULL, NULL, NULL },
		{ OPT_TEXT, 'b', "batch", "B,..", &b_text, "sequences in the step [1,32]" },
		{ OPT_TEXT, 'd', "depth", "N,..", &d_text,
		  "positions in the cache of each [512,2048,8192,16384]" },
		OPT_FIT(m->c),
		OPT_COMMON(m->c),
	};
	if (OPT_PARSE(&cmd_bench_mla, opt, argc, argv, args) == 0)
		return opt_usage_error(&cmd_bench_mla, "name a model");
	if (!parse_sizes(b_text, m->batch.v, MAX_SIZES, &m->batch.n) ||
	    !parse_sizes(d_text, m->depth.v, MAX_SIZES, &m->depth.n) ||
	    !all_within(&m->batch, 1, MAX_SEQS - 1) || !all_within(&m->depth, 1, 1 << 20))
		return opt_usage_error(
		    &cmd_bench_mla,
		    "-b takes a list of 1 to %d, -d one of 1 to %d, such as 512,2048", MAX_SEQS - 1,
		    1 << 20);
	m->most_batch = most_of(&m->batch);
	m->most_depth = most_of(&m->depth);
	interrupt_install();
	for (int form = 0; st == LLMC_OK && form < FORMS; form++)
		st = one_form(m, form, args[0], &err);
	progress_end();
	if (st == LLMC_OK)
		report(m);
	free(m->c.set.v);
	free(m);
	return st == LLMC_OK ? 0 : st == LLMC_E_CANCELLED ? EXIT_INTERRUPTED : fail_with(&err);
}

const Command cmd_bench_mla = {
	"bench mla",
	"MODEL [-b 1,32] [-d 512,2048,8192,16384]",
	"time a latent attention module, absorbed against expanded",
	"  llmc bench mla model.gguf\n"
	"  llmc bench mla configs/deepseek-v2-lite.yaml --random-weights\n"
	"  llmc bench mla configs/deepseek-v2.yaml --random-weights --device cuda --json\n",
	bench_mla,
};
