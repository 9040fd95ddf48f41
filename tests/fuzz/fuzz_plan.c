/* Plans edited within valid JSON: read and checked; a plan that passes is run by the reference
 * interpreter. A plan that plan_read accepts must be safe to run, whatever it computes.
 *
 * An input is a list of edits to the plan of one of the descriptions in tests/fuzz/corpus/yaml.
 * They are compiled once, so that no seed becomes invalid when the format changes. Byte 0 selects
 * the plan, then 6 bytes per edit: leaf or array (16 bits), operation (8), operand (16), 8 spare.
 * Text that begins with '{' is used as a plan itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "compiler/compile.h"
#include "runtime/runtime.h"
#include "tests/fuzz/descriptions.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_BASES = 3 * MAX_DESCRIPTIONS, MAX_EDITS = 2000 };

typedef struct Span {
	size_t off, len, key;
	/* key: where the name of the value starts in the text. Elements of an array have the key of
	 * the array. */
} Span;
typedef struct Array {
	Span whole, *elem;
	size_t n;
} Array;
typedef struct Base { /* a plan, and the offsets of its values in the text */
	char *text;
	Span *span;
	Array *array;
	size_t n_span, n_array;
} Base;

static Base base[MAX_BASES];
static int n_base;

static void
die(const char *what, const char *text)
{
	fprintf(stderr, "fuzz_plan: %s: %s\n", what, text);
	abort();
}

/* ---- edits of the text, at offsets found once per plan ---- */

typedef struct Edit {
	size_t off, len;
	char *text;
} Edit; /* text replaces len bytes at off */

static void scan_value(Base *b, const char **at, size_t key);

static void
skip_blanks(const char **at)
{
	while (**at == ' ' || **at == '\n' || **at == '\t')
		++*at;
}

/* Scans a list, or an object whose keys are skipped. */
static void
scan_members(Base *b, const char **at, size_t key)
{
	const char close = **at == '[' ? ']' : '}';
	const size_t off = (size_t)(*at - b->text);
	size_t array = SIZE_MAX;

	if (close == ']') {
		array = b->n_array++;
		b->array[array] = (Array){ .whole.off = off };
	}
	for (++*at, skip_blanks(at); **at != close; skip_blanks(at)) {
		if (**at == ',') {
			++*at;
			skip_blanks(at);
		}
		if (close == '}') {
			key = (size_t)(*at - b->text);
			*at = strchr(*at + 1, '"') + 1; /* keys have no escapes */
			skip_blanks(at);
			++*at;
			skip_blanks(at);
		}
		size_t from = (size_t)(*at - b->text);
		scan_value(b, at, key);
		if (close == ']') {
			Array *x = &b->array[array];
			x->elem = realloc(x->elem, (x->n + 1) * sizeof *x->elem);
			if (!x->elem)
				exit(2);
			x->elem[x->n++] = (Span){ from, (size_t)(*at - b->text) - from, key };
		}
	}
	++*at;
	if (close == ']')
		b->array[array].whole.len = (size_t)(*at - b->text) - off;
}

static void
scan_value(Base *b, const char **at, size_t key)
{
	const char *from = *at;

	if (*from == '[' || *from == '{') {
		scan_members(b, at, key);
		return;
	}
	if (*from == '"') {
		for (++*at; **at != '"'; ++*at)
			*at += **at == '\\';
		++*at;
	} else {
		*at += strcspn(from, ",]} \n\t");
	}
	b->span[b->n_span++] = (Span){ (size_t)(from - b->text), (size_t)(*at - from), key };
}

static int64_t
changed_int(int64_t v, int what, int with)
{
	static const int64_t odd[] = { 0,
		                       1,
		                       -1,
		                       2,
		                       3,
		                       4,
		                       7,
		                       31,
		                       32,
		                       33,
		                       64,
		                       255,
		                       256,
		                       257,
		                       4095,
		                       1 << 16,
		                       1 << 20,
		                       INT32_MAX,
		                       (int64_t)INT32_MAX + 1,
		                       (int64_t)1 << 40,
		                       (int64_t)1 << 47,
		                       (int64_t)1 << 48,
		                       INT64_MAX,
		                       INT64_MIN };

	switch (what % 6) {
	case 0:
		return odd[(size_t)with % (sizeof odd / sizeof *odd)];
	case 1:
		return (int64_t)((uint64_t)v + (uint64_t)(with % 17) - 8);
	case 2:
		return (int64_t)((uint64_t)v * (uint64_t)(2 + with % 7));
	case 3:
		return v / (2 + with % 7);
	case 4:
		return with;
	default:
		return (int64_t)((uint64_t)v + 256 * ((uint64_t)(with % 65) - 32));
	}
}

static char *
cut(const Base *b, Span s)
{
	return strndup(b->text + s.off, s.len);
}

/* Returns another value of the leaf's kind, or NULL if there is none. */
static char *
changed(const char *v, int what, int with)
{
	static const double odd[] = { 0, -1, 1, 1e-30, 1e30, 1e300, 0.5, 2, 1e-300, 64 };
	char *out = NULL;

	if (*v == 't' || *v == 'f')
		return strdup(*v == 't' ? "false" : "true");
	if (*v == '"' || *v == 'n')
		return NULL;
	if (strpbrk(v, ".eE")) {
		double d = what % 2 ? strtod(v, NULL) * (with % 9 - 4)
		                    : odd[(size_t)with % (sizeof odd / sizeof *odd)];
		return asprintf(&out, "%.16e", d) > 0 ? out : NULL;
	}
	return asprintf(&out, "%lld", (long long)changed_int(strtoll(v, NULL, 10), what, with)) > 0
	           ? out
	           : NULL;
}

/* Returns an array in which one element is missing, repeated or moved, or two elements are
 * exchanged. */
static char *
changed_array(const Base *b, const Array *x, int what, size_t with)
{
	size_t one = with % x->n, two = with / 7 % x->n;
	Strbuf out = { 0 };

	strbuf_puts(&out, "[");
	for (size_t i = 0; i < x->n; i++) {
		Span s = x->elem[i];
		if (what % 4 == 0 && i == one)
			continue;
		if (what % 4 == 2 && i == two)
			s = x->elem[one];
		if (what % 4 == 3 && (i == one || i == two))
			s = x->elem[i == one ? two : one];
		for (int k = what % 4 == 1 && i == one; k >= 0; k--) {
			strbuf_puts(&out, out.len > 1 ? "," : "");
			strbuf_add(&out, b->text + s.off, s.len);
		}
	}
	strbuf_puts(&out, "]");
	return out.data;
}

/* Returns the first leaf after number `from` that has the name of `like` and another value, or
 * `like` if there is none. */
static Span
namesake(const Base *b, Span like, size_t from)
{
	size_t len = strcspn(b->text + like.key + 1, "\"") + 2;

	for (size_t i = 0; i < b->n_span; i++) {
		Span s = b->span[(from + i) % b->n_span];
		if (strncmp(b->text + s.key, b->text + like.key, len) == 0 &&
		    (s.len != like.len || memcmp(b->text + s.off, b->text + like.off, s.len) != 0))
			return s;
	}
	return like;
}

typedef struct Edits {
	Edit v[MAX_EDITS];
	size_t n;
} Edits; /* in text order */

static void
add_edit(Edits *e, Edit x) /* takes ownership of x.text */
{
	size_t k = e->n;

	while (k > 0 && e->v[k - 1].off > x.off)
		k--;
	if (!x.text || e->n == MAX_EDITS || (k > 0 && e->v[k - 1].off + e->v[k - 1].len > x.off) ||
	    (k < e->n && x.off + x.len > e->v[k].off)) {
		free(x.text);
		return;
	}
	memmove(e->v + k + 1, e->v + k, (e->n - k) * sizeof *e->v);
	e->v[k] = x;
	e->n++;
}

static void
read_edit(const Base *b, const uint8_t *e, Edits *out)
{
	size_t where = e[0] | (size_t)e[1] << 8, with = e[3] | (size_t)e[4] << 8;
	int what = e[2] / 8, kind = e[2] % 8;

	if (kind >= 6) {
		const Array *x = &b->array[where % b->n_array];
		if (x->n)
			add_edit(out, (Edit){ x->whole.off, x->whole.len,
			                      changed_array(b, x, what, with) });
		return;
	}
	/* the leaf follows the numbers of format and step_abi */
	Span s = b->span[2 + (where * 7919 + 97) % (b->n_span - 2)];
	char *old = cut(b, s), *new = kind < 4 ? changed(old, what, (int)with) : NULL;
	if (!new) /* the leaf is a string: a name, a reference or a word */
		new = cut(b, what ? namesake(b, s, with) : b->span[with % b->n_span]);
	if (kind == 3 && new) /* change this number everywhere, so that sizes still agree */
		for (size_t i = 2; i < b->n_span; i++)
			if (b->span[i].len == s.len &&
			    memcmp(b->text + b->span[i].off, old, s.len) == 0)
				add_edit(out, (Edit){ b->span[i].off, s.len, strdup(new) });
	free(old);
	add_edit(out, (Edit){ s.off, s.len, new });
}

static void
apply(const Base *b, const uint8_t *data, size_t size, Strbuf *out)
{
	Edits edit = { .n = 0 };
	size_t at = 0;

	for (size_t i = 0; i < 8 && 6 * (i + 1) <= size; i++)
		read_edit(b, data + 6 * i, &edit);
	for (size_t i = 0; i < edit.n; i++) {
		strbuf_add(out, b->text + at, edit.v[i].off - at);
		strbuf_puts(out, edit.v[i].text);
		at = edit.v[i].off + edit.v[i].len;
		free(edit.v[i].text);
	}
	strbuf_puts(out, b->text + at);
}

/* ---- seed plans ---- */

static void
add_base(const char *path, const char *target)
{
	Strbuf yaml = { 0 }, text = { 0 };
	llmc_error err;
	Arena perm;
	Diag d;

	arena_init(&perm);
	if (setjmp(perm.oom))
		die(path, "out of memory");
	if (file_read(path, 1 << 20, &yaml, &err) != LLMC_OK)
		die(path, err.text);
	diag_init(&d, &perm);
	if (setjmp(d.bug))
		die(path, strbuf_str(&d.text));
	Spec *s = spec_from_text(path, yaml.data, yaml.len, NULL, &d, &perm);
	Compiled *c = s ? compile_spec(s, target, NULL, NULL, &d, &perm) : NULL;
	if (!c)
		die(path, strbuf_str(&d.text));
	plan_write(c->plan, &text);
	Base *b = &base[n_base++];
	*b = (Base){ .text = strdup(text.data),
		     .span = calloc(text.len, sizeof *b->span),
		     .array = calloc(text.len, sizeof *b->array) };
	const char *at = b->text;
	if (!b->text || !b->span || !b->array)
		exit(2);
	scan_value(b, &at, 0);
	strbuf_release(&yaml);
	strbuf_release(&text);
	arena_release(&perm);
}

static void
make_bases(void)
{
	char *path[MAX_DESCRIPTIONS];
	int n = descriptions_list(path);

	for (int i = 0; i < n; i++) {
		add_base(path[i], "ref");
		add_base(path[i], "cpu-v3");
	}
	/* Plans for a GPU have launches, tensor maps and GEMMs. They come last, because kept inputs
	 * select a plan by its index. */
	for (int i = 0; i < n; i++) {
		add_base(path[i], "cuda-sm_90a");
		free(path[i]);
	}
}

/* ---- running ---- */

static bool
small(const Plan *p, const llmc_memory *m)
{
	int64_t bytes = m->kv + m->scratch + m->state;

	for (int i = 0; i < p->n_tensor; i++) {
		int64_t b = plan_tensor_bytes(&p->tensor[i]);
		if (b < 0 || b > 1 << 22)
			return false;
		bytes += b;
	}
	return bytes >= 0 && bytes < 1 << 24;
}

static void
run(const Plan *p)
{
	RuntimeOptions opt = { .n_threads = 1, .random_weights = true };
	llmc_limits lim = LLMC_INIT(llmc_limits);
	llmc_memory mem = LLMC_INIT(llmc_memory);
	int32_t tok[6];
	Runtime *rt;
	Session *s;
	llmc_error err;

	if (strcmp(p->target, "ref") != 0 || p->vocab > 1 << 16)
		return;
	lim.context = 40;
	lim.seqs = 2;
	lim.chunk = 6;
	lim.n_threads = 1;
	if (session_memory(p, &lim, &mem, &err) != LLMC_OK || !small(p, &mem))
		return;
	if (runtime_open(p, &opt, &rt, &err) != LLMC_OK)
		return;
	if (session_open(rt, &lim, &s, &err) == LLMC_OK) {
		float *logits = malloc((size_t)p->vocab * 2 * sizeof *logits);
		llmc_seq a, b;
		for (int i = 0; i < 6; i++)
			tok[i] = (int32_t)((3 * i + 1) % p->vocab);
		if (logits && session_seq_new(s, 40, &a, &err) == LLMC_OK) {
			llmc_chunk c[2] = { { .seq = a, .tok = tok, .n_tok = 6, .n_out = 1 } };
			bool ok = session_forward(s, c, 1, logits, &err) == LLMC_OK;
			if (ok && session_seq_fork(s, a, &b, &err) == LLMC_OK) {
				for (int i = 0; i < 2; i++)
					c[i] = (llmc_chunk){ .seq = i ? b : a,
						             .tok = tok + i,
						             .n_tok = 1,
						             .n_out = 1 };
				session_forward(s, c, 2, logits, &err);
				c[0].n_tok = 3;
				session_forward(s, c, 2, logits, &err);
			}
		}
		free(logits);
		session_close(s);
	}
	runtime_close(rt);
}

static void
read_and_run(const char *text, size_t size, Arena *arena, Strbuf *again)
{
	llmc_error err = { 0 };
	Plan *p, *q;

	if (setjmp(arena->oom))
		return;
	llmc_status status = plan_read(text, size, "plan", arena, &p, &err);
	if (status != LLMC_OK) {
		if (status != LLMC_E_INPUT || !err.text[0])
			die("not an error of the plan", err.text);
		return;
	}
	run(p);
	/* one input in four is enough, because this check takes as long as all others */
	if (size % 4)
		return;
	plan_write(p, again);
	if (plan_read(again->data, again->len, "plan", arena, &q, &err) != LLMC_OK)
		die("an accepted plan, written, is refused", err.text);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;
	Strbuf again = { 0 }, made = { 0 };
	Arena arena;

	if (!n_base)
		make_bases();
	if (size == 0)
		return 0;
	if (data[0] != '{') {
		apply(&base[data[0] % n_base], data + 1, size - 1, &made);
		text = made.data;
		size = made.len;
	}
	arena_init(&arena);
	read_and_run(text, size, &arena, &again);
	arena_release(&arena);
	strbuf_release(&again);
	strbuf_release(&made);
	return 0;
}
