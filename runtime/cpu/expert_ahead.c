/* Reading routed experts of a mapped file ahead. When the router has chosen, the threads of the
 * step issue reads of all pages of the chosen experts that are not in memory, down projections
 * included, before the first GEMV reads them. Otherwise each thread would wait for one page fault
 * at a time. The operating system's page cache drops the least recently used experts.
 *
 * While all experts are in memory, only one of SAMPLE layers is checked. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/cpu/cpu.h"
#include "runtime/cpu/expert_ahead.h"

enum { MAX_EXPERTS = 1024, QUIET = 256, SAMPLE = 64, VECTOR = 4096 };

/* Index of the input of this name; -1: none */
static int
input_of(const PlanStep *st, const char *name)
{
	const OpInfo *op = &op_info[st->op];

	for (int k = 0; k < op->n_in && k < st->n_arg; k++)
		if (!strcmp(op->arg[k].name, name))
			return k;
	return -1;
}

/* Add the stacked matrices of a step that are mapped. */
static void
add_tensors(ExpertLoad *load, const PlanStep *st, void *const *arg, const Plan *p, const Weights *w)
{
	static const char *const names[] = { "gate", "up", "down" };

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const int k = input_of(st, names[i]);
		if (k < 0 || st->arg[k].kind != REF_TENSOR || load->n_matrix == EXPERT_MATRICES ||
		    !weights_mapped(w, st->arg[k].index))
			continue;
		load->matrix[load->n_matrix++] = (MappedExperts){
			.data = arg[k],
			.bytes = plan_tensor_bytes(&p->tensor[st->arg[k].index]) / load->n_experts,
		};
	}
}

void
expert_ahead_bind(ExpertAhead *a, ExpertLoad *load, const PlanStep *st, void *const *arg,
                  const Plan *p, const Weights *w)
{
	const int id = op_info[st->op].flags & OPF_EXPERTS ? input_of(st, "id") : -1;

	*load = (ExpertLoad){ 0 };
	if (id < 0)
		return;
	/* a down projection uses the experts of the gate and up projections before it: join their
	 * load */
	if (st->op == OP_moe_down_add && a->last && a->last->id == arg[id] &&
	    a->layer == st->layer) {
		add_tensors(a->last, st, arg, p, w);
		a->last = NULL;
		return;
	}
	load->id = arg[id];
	load->n_experts = (int)step_int(st, "n_experts");
	load->top_k = (int)step_int(st, "top_k");
	if (load->n_experts < 1 || load->n_experts > MAX_EXPERTS) {
		load->id = NULL;
		return;
	}
	add_tensors(load, st, arg, p, w);
	a->last = load;
	a->layer = st->layer;
}

/* Bytes of a range that are not in memory */
static int64_t
nonresident_bytes(const char *from, const char *to, int64_t page)
{
	unsigned char here[VECTOR];
	int64_t sum = 0;

	for (const char *at = from; at < to; at += VECTOR * page) {
		int64_t n = (to - at + page - 1) / page;
		n = n < VECTOR ? n : VECTOR;
		if (mincore((void *)(uintptr_t)at, (size_t)(n * page), here) != 0)
			return sum;
		for (int64_t i = 0; i < n; i++)
			sum += here[i] & 1 ? 0 : page;
	}
	return sum;
}

static void
load_expert(ExpertAhead *a, const ExpertLoad *load, int expert, int64_t page)
{
	for (int i = 0; i < load->n_matrix; i++) {
		const MappedExperts *m = &load->matrix[i];
		const char *at = m->data + expert * m->bytes;
		const char *from = at - (uintptr_t)at % (uintptr_t)page;
		const int64_t absent = nonresident_bytes(from, at + m->bytes, page);

		atomic_fetch_add_explicit(&a->bytes, m->bytes, memory_order_relaxed);
		if (!absent)
			continue;
		atomic_fetch_add_explicit(&a->read, absent < m->bytes ? absent : m->bytes,
		                          memory_order_relaxed);
		atomic_store_explicit(&a->quiet, 0, memory_order_relaxed);
		(void)madvise((void *)(uintptr_t)from, (size_t)(at + m->bytes - from),
		              MADV_WILLNEED);
	}
}

void
expert_ahead_load(ExpertAhead *a, const ExpertLoad *load, int64_t n_tok, int part, int n_parts)
{
	uint64_t seen[MAX_EXPERTS / 64] = { 0 };
	const int quiet = atomic_load_explicit(&a->quiet, memory_order_relaxed);

	if (part == 0)
		atomic_fetch_add_explicit(&a->quiet, 1, memory_order_relaxed);
	if (quiet > QUIET && quiet % SAMPLE)
		return;
	const int64_t page = sysconf(_SC_PAGESIZE);
	for (int64_t i = 0; i < n_tok * load->top_k; i++) {
		const int e = load->id[i];
		if (e < 0 || e >= load->n_experts || seen[e / 64] >> e % 64 & 1)
			continue;
		seen[e / 64] |= (uint64_t)1 << e % 64;
		if (e % n_parts == part)
			load_expert(a, load, e, page);
	}
}
