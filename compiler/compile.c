/* The compiler as a list of passes. */
#include "compiler/compile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/embed.h"
#include "compiler/select_kernels.h"

typedef struct CompileWork {
	Strbuf *log, *text;
} CompileWork;

static bool
dump_is(const char *dump, const char *stage)
{
	return dump && strcmp(dump, stage) == 0;
}

static void
file_add(Compiled *c, size_t *cap, Arena *a, const char *path, const char *text, size_t size)
{
	for (size_t i = 0; i < c->n_file; i++)
		if (strcmp(c->file[i].path, path) == 0)
			return;
	c->file = arena_grow(a, c->file, cap, c->n_file + 1, sizeof *c->file);
	c->file[c->n_file++] = (ArtifactFile){ path, text, size };
}

/* Copy the buffer's text into the arena and clear the buffer. */
static const char *
take_text(Arena *a, Strbuf *b, size_t *size)
{
	if (b->failed)
		arena_out(a);
	const char *s = arena_strndup(a, strbuf_str(b), b->len);
	*size = b->len;
	strbuf_clear(b);
	return s;
}

static int
by_path(const void *a, const void *b)
{
	return strcmp(((const ArtifactFile *)a)->path, ((const ArtifactFile *)b)->path);
}

static void
add_files(Compiled *c, const Graph *g, const Selection *sel, CompileWork *w)
{
	Arena *a = g->arena;
	size_t cap = 0, size;

	file_add(c, &cap, a, "model.yaml", g->spec->yaml, strlen(g->spec->yaml));
	const int ranks = g->ranks * g->stages * g->partitions,
	          rank = g->stage * g->ranks + g->rank + g->partition;
	const char *of = ranks > 1 ? arena_printf(a, "-r%dof%d", rank, ranks) : "";
	file_add(c, &cap, a, arena_printf(a, "plan-%s%s.txt", c->plan->target, of), c->plan_text,
	         strlen(c->plan_text));
	plan_write(c->plan, w->text);
	const char *json = take_text(a, w->text, &size);
	file_add(c, &cap, a, arena_printf(a, "plan-%s%s.json", c->plan->target, of), json, size);
	for (int i = 0; i < sel->n_kernel; i++) {
		const Kernel *k = sel->kernel[i];
		/* files of matmul functions per weight type are the same in all artifacts, so they
		 * get no comment about a model */
		if (k->row.n_arg)
			emit_comment(g, sel, c->plan, i, w->text);
		strbuf_puts(w->text, k->text);
		const char *text = take_text(a, w->text, &size);
		file_add(c, &cap, a, k->row.file, text, size);
		for (int h = 0; h < k->n_header; h++) {
			const char *body =
			    embed_find(arena_printf(a, "templates/%s", k->header[h]), &size);
			file_add(c, &cap, a, arena_printf(a, "kernels/%s", k->header[h]), body,
			         size);
		}
	}
	qsort(c->file, c->n_file, sizeof *c->file, by_path);
}

/* Check that the target and the model support kv.host, pages in host memory. */
static bool
host_pages_fit(const Graph *g, const char *target, Diag *d)
{
	const Spec *s = g->spec;
	const char *why =
	    target_find(target)->kind != TARGET_CUDA
	        ? "CPU targets keep all pages in host memory; --kv-tokens sets their number"
	        : NULL;

	for (int i = 0; i < g->n_pool && !why; i++)
		why = g->pool[i].state ? "this model has recurrent layers, whose state is not in "
		                         "pages; use --swap-memory for preempted requests"
		                       : NULL;
	if (!why && s->attention.mask != MASK_CAUSAL && s->attention.mask != MASK_IMAGES)
		why = "prompts of this model are not reused, since tokens attend to later ones "
		      "(attention.mask)";
	if (why)
		err_at(d, spec_loc(s, "kv.host"), "kv.host = %" PRId64 ": %s", s->kv.host, why);
	return !why;
}

/* Check that kv.host has space for at least one page. */
static bool
host_page_fits(const Spec *s, const Plan *p, Diag *d)
{
	const int64_t one = plan_page_bytes(p);

	if (s->kv.host < 1 || s->kv.host >= one)
		return true;
	err_at(d, spec_loc(s, "kv.host"),
	       "kv.host = %" PRId64 ": a page of this model has %" PRId64 " bytes%s", s->kv.host,
	       one, s->tp * s->pp > 1 ? " on this rank" : "");
	return false;
}

int
compile_partitions(const Spec *s, const char *target, int rank)
{
	const Target *t = target_find(target);

	return s->placement.any && s->tp * s->pp == 1 && t && (t->kind == TARGET_CUDA || rank > 0)
	           ? 2
	           : 1;
}

static Compiled *
compile(const Spec *s, const char *target, int rank, bool fuse, const char *dump, Strbuf *dump_out,
        Diag *d, Arena *perm, CompileWork *w)
{
	Templates *ts = NULL;

	if (dump_is(dump, "spec"))
		strbuf_puts(dump_out, s->yaml);
	Graph *g = graph_build(s, d, perm);
	if (!g)
		return NULL;
	graph_infer(g);
	graph_verify(g, "build");
	int n_op = (int)g->n_op;
	if (dump_is(dump, "graph"))
		graph_dump(g, dump_out);
	if (s->tp > 1 || s->pp > 1 || compile_partitions(s, target, rank) > 1)
		for (size_t i = 0; i < g->n_tensor; i++)
			g->n_params +=
			    g->tensor[i].rows * (g->tensor[i].cols ? g->tensor[i].cols : 1);
	if (s->pp > 1) {
		if (!graph_stage(g, rank / s->tp))
			return NULL;
		graph_verify(g, "stage");
		n_op = (int)g->n_op;
	}
	if (compile_partitions(s, target, rank) > 1) {
		if (!graph_partition(g, rank))
			return NULL;
		graph_verify(g, "partition");
		n_op = (int)g->n_op;
	}
	if (s->kv.host > 0 && !host_pages_fit(g, target, d))
		return NULL;
	if (s->tp > 1) {
		if (!graph_shard(g, rank % s->tp))
			return NULL;
		graph_verify(g, "shard");
		n_op = (int)g->n_op;
	}
	if (dump_is(dump, "shard"))
		graph_dump(g, dump_out);

	if (target_find(target)->kind != TARGET_REF) {
		ts = templates_load(target, s, d, perm);
		select_layouts(g, ts);
		if (fuse) {
			graph_fuse(g, ts, w->log);
			graph_narrow(g, ts, w->log);
		}
	}
	if (dump_is(dump, "fuse"))
		graph_dump(g, dump_out);

	Selection *sel = select_steps(g, ts, d);
	if (!sel || d->n_error)
		return NULL;
	select_persistent(g, ts, sel);
	mem_buffers(g, sel);
	mem_assign(perm, sel->buf, sel->n_buf, &sel->slot, &sel->n_slot);

	Compiled *c = NEW(perm, Compiled, 1);
	size_t size;
	c->plan = emit_plan(g, sel, target);
	if (!host_page_fits(s, c->plan, d))
		return NULL;
	emit_text(g, sel, c->plan, strbuf_str(w->log), n_op, w->text);
	c->plan_text = take_text(perm, w->text, &size);
	if (dump_is(dump, "order"))
		dump_order(c->plan, dump_out);
	if (dump_is(dump, "plan"))
		strbuf_puts(dump_out, c->plan_text);
	add_files(c, g, sel, w);
	return c;
}

Compiled *
compile_spec(const Spec *s, const char *target, const char *dump, Strbuf *dump_out, Diag *d,
             Arena *perm)
{
	static const char *const stages[] = { "spec", "graph", "shard", "fuse", "order", "plan" };
	bool known = !dump;

	for (size_t i = 0; dump && i < sizeof stages / sizeof *stages; i++)
		known |= strcmp(stages[i], dump) == 0;
	if (!known)
		err_at(d, (Loc){ 0 }, "--dump=%s: expected spec, graph, shard, fuse, order or plan",
		       dump);
	if (!target_find(target))
		err_at(
		    d, (Loc){ 0 },
		    "unknown target %s: expected ref, cpu-generic, cpu-v3, cpu-v4, cuda-sm_80, ...",
		    target);
	if (!known || !target_find(target))
		return NULL;
	CompileWork w = { .log = arena_strbuf(perm), .text = arena_strbuf(perm) };
	Compiled *c = compile(s, target, 0, true, dump, dump_out, d, perm, &w);
	strbuf_release(w.log);
	strbuf_release(w.text);
	return c;
}

Compiled *
compile_rank(const Spec *s, const char *target, int rank, bool fuse, Diag *d, Arena *perm)
{
	CompileWork w = { .log = arena_strbuf(perm), .text = arena_strbuf(perm) };
	Compiled *c = compile(s, target, rank, fuse, NULL, NULL, d, perm, &w);

	strbuf_release(w.log);
	strbuf_release(w.text);
	return c;
}
