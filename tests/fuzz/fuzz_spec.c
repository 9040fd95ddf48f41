/* Sets keys in descriptions of the corpus to values in and near their ranges. A description is
 * rejected with a message, or compiles to a plan that the runtime accepts and the reference runs.
 *
 * Input: byte 0 selects the description and target, then 4 bytes per key: key (8 bits), kind of
 * value (8), value (16). */
#include "compiler/compile.h"

#include "runtime/runtime.h"
#include "tests/fuzz/descriptions.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_SETS = 12, MAX_SET_BYTES = 160 };

typedef enum Kind { INT, NUM, BYTES, BOOL, WORD, STR, LAYERS, INTS, NUMS, RULES, TENSORS } Kind;
typedef struct KeyRow {
	const char *path;
	Kind kind;
	double lo, hi;
	const char *unit;
} KeyRow;
static const KeyRow key[] = {
#define KEY(id, path, type, def, lo, hi, unit, text) { path, type, lo, hi, unit },
#include "compiler/spec/spec.def"
#undef KEY
};

static Strbuf base[MAX_DESCRIPTIONS];
static int n_base;

static void
die(const char *what, const char *text)
{
	fprintf(stderr, "fuzz_spec: %s: %s\n", what, text);
	abort();
}

static void
set_text(char *out, const KeyRow *k, int kind, int with)
{
	static const char *const layers[] = { "all",     "none",   "0",         "1",
		                              "\"0-1\"", "[0, 1]", "{from: 1}", "{every: 2}" };
	static const char *const rules[] = { "[]", "[{tensor: \"*\", type: q8_0}]",
		                             "[{tensor: down, type: q6_k}, {tensor: q, type: f16}]",
		                             "[{tensor: embed, layers: 0, type: q4_0}]",
		                             "[{tensor: head, type: bf16}]" };
	static const char *const tensors[] = { "{}",
		                               "{q: other}",
		                               "{q+k+v: qkv | per_head}",
		                               "{gate+up: gu}",
		                               "{head: null}",
		                               "{up: up | transpose}",
		                               "{q: wq | rope_pairs, k: wk | rope_pairs}",
		                               "{rope_factors: f}",
		                               "{drop: x}" };
	static const double odd[] = {
		0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 100, 256, 0.5, 1e-6, 1e6
	};
	double v = kind % 4 == 0   ? odd[with % 16]
	           : kind % 4 == 1 ? with % 32
	           : kind % 4 == 2 ? k->lo
	                           : with / 16.0;
	char word[64] = "null";
	const char *w = k->unit;

	switch (k->kind) {
	case INT:
		snprintf(out, MAX_SET_BYTES, "%s=%lld", k->path,
		         kind == 7 ? (long long)k->hi : (long long)v);
		return;
	case NUM:
		snprintf(out, MAX_SET_BYTES, "%s=%.9g", k->path, v);
		return;
	case BYTES:
		snprintf(out, MAX_SET_BYTES, "%s=%lld%s", k->path, (long long)v,
		         with % 3 ? "K" : "");
		return;
	case BOOL:
		snprintf(out, MAX_SET_BYTES, "%s=%s", k->path, with % 2 ? "true" : "false");
		return;
	case WORD:
		for (int i = with % 12; *w; i--) {
			size_t n = strcspn(w, " ");
			snprintf(word, sizeof word, "%.*s", (int)n, w);
			w += n + (w[n] == ' ');
			if (i <= 0)
				break;
		}
		snprintf(out, MAX_SET_BYTES, "%s=%s", k->path, word);
		return;
	case STR:
		snprintf(out, MAX_SET_BYTES, "%s=%s", k->path, with % 3 ? "llama" : "null");
		return;
	case LAYERS:
		snprintf(out, MAX_SET_BYTES, "%s=%s", k->path, layers[with % 8]);
		return;
	case INTS:
		snprintf(out, MAX_SET_BYTES, "%s=[%d, %d]", k->path, with % 16, with / 16 % 32);
		return;
	case NUMS:
		snprintf(out, MAX_SET_BYTES, "%s=[1.5, %d%s]", k->path, with % 16,
		         with & 16 ? "" : ", 2, 3");
		return;
	case RULES:
		snprintf(out, MAX_SET_BYTES, "%s=%s", k->path, rules[with % 5]);
		return;
	case TENSORS:
		snprintf(out, MAX_SET_BYTES, "%s=%s", k->path, tensors[with % 9]);
		return;
	}
}

static bool
small(const Spec *s)
{
	return s->n_layers <= 4 && s->hidden <= 256 && s->vocab_size <= 1024 &&
	       s->moe.n_experts <= 32 && s->ffn.width <= 1024 && s->moe.width <= 256 &&
	       s->moe.shared_width <= 1024 && s->attention.n_heads <= 64 &&
	       s->attention.n_kv_heads <= 64 && s->attention.head_dim <= 256 &&
	       s->attention.v_dim <= 256 && s->attention.q_rank <= 256 &&
	       s->attention.kv_rank <= 256 && s->max_positions <= 1 << 16;
}

/* Every reader must accept a plan of our compiler, and the plan must run. */
static void
run(const Plan *p)
{
	RuntimeOptions opt = { .n_threads = 1, .random_weights = true };
	llmc_limits lim = LLMC_INIT(llmc_limits);
	int32_t tok[5] = { 1, 3, 0, 2, 1 };
	Runtime *rt;
	Session *s;
	llmc_seq seq;
	llmc_error err;

	for (int i = 0; i < 5; i++)
		tok[i] = (int32_t)(tok[i] % p->vocab);
	lim.context = (int32_t)(p->max_positions < 40 ? p->max_positions : 40);
	lim.chunk = 5;
	lim.n_threads = 1;
	if (runtime_open(p, &opt, &rt, &err) != LLMC_OK)
		die("a compiled plan does not open", err.text);
	if (session_open(rt, &lim, &s, &err) != LLMC_OK)
		die("a compiled plan has no session", err.text);
	float *logits = malloc((size_t)p->vocab * sizeof *logits),
	      *row = calloc(5 * (size_t)p->hidden, sizeof *row);
	/* an MTP head reads hidden rows */
	const float *const rows = row, *const *came = p->takes_rows ? &rows : NULL;
	if (lim.context >= 6 && logits && row) {
		llmc_chunk c = { .tok = tok, .n_tok = 5, .n_out = 1 };
		if (session_seq_new(s, lim.context, &seq, &err) != LLMC_OK)
			die("no sequence", err.text);
		c.seq = seq;
		if (session_forward_rows(s, &c, 1, came, logits, &err) != LLMC_OK)
			die("a prompt does not run", err.text);
		c.n_tok = 1;
		if (session_forward_rows(s, &c, 1, came, logits, &err) != LLMC_OK)
			die("a token does not run", err.text);
	}
	free(logits);
	free(row);
	session_close(s);
	runtime_close(rt);
}

static void
compile(const Strbuf *yaml, const char *const *set, const char *target, Diag *d, Arena *perm,
        Strbuf *json)
{
	llmc_error err;
	Plan *p;

	if (setjmp(perm->oom))
		return;
	diag_init(d, perm);
	if (setjmp(d->bug))
		die("a fault", strbuf_str(&d->text));
	Spec *s = spec_from_text("fuzz.yaml", yaml->data, yaml->len, set, d, perm);
	if (!s != (d->n_error > 0))
		die("errors and result disagree", strbuf_str(&d->text));
	if (!s || !small(s))
		return;
	Compiled *c = compile_spec(s, target, NULL, NULL, d, perm);
	if (!c != (d->n_error > 0))
		die("errors and result disagree", strbuf_str(&d->text));
	if (!c)
		return;
	plan_write(c->plan, json);
	if (plan_read(json->data, json->len, "plan", perm, &p, &err) != LLMC_OK)
		die("a compiled plan is refused", err.text);
	if (strcmp(target, "ref") == 0)
		run(p);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char text[MAX_SETS][MAX_SET_BYTES];
	const char *set[MAX_SETS + 1] = { NULL };
	Strbuf json = { 0 };
	Arena perm;
	Diag d;

	if (n_base == 0)
		n_base = descriptions_read(base);
	if (size == 0)
		return 0;
	for (size_t i = 0; i < MAX_SETS && 1 + 4 * (i + 1) <= size; i++) {
		const uint8_t *e = data + 1 + 4 * i;
		set_text(text[i], &key[e[0] % (sizeof key / sizeof *key)], e[1] % 8,
		         e[2] | e[3] << 8);
		set[i] = text[i];
	}
	arena_init(&perm);
	memset(&d, 0, sizeof d);
	if (getenv("FUZZ_SHOW")) { /* to inspect an input that failed */
		fprintf(stderr, "description %d, %s\n", data[0] % n_base,
		        data[0] < 192 ? "ref" : "cpu-v3");
		for (int i = 0; set[i]; i++)
			fprintf(stderr, "--set %s\n", set[i]);
	}
	compile(&base[data[0] % n_base], set, data[0] < 192 ? "ref" : "cpu-v3", &d, &perm, &json);
	strbuf_release(&json);
	arena_release(&perm);
	return 0;
}
