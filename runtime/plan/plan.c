/* Sizes that a plan implies, overflow-checked: what mem, the checker and the runtime all count with. */
#include "runtime/plan/plan.h"
#include "runtime/weights/layout.h"

int64_t
plan_layer_page_bytes(const PlanPool *p)
{
	int64_t per_pos, elems, bytes;

	if (p->kv_heads < 0 || p->k_dim < 0 || p->v_dim < 0 || __builtin_add_overflow(p->k_dim, p->v_dim, &per_pos) ||
	    __builtin_mul_overflow(per_pos, p->kv_heads, &per_pos) ||
	    __builtin_mul_overflow(per_pos, (int64_t)PLAN_KV_PAGE, &elems) ||
	    __builtin_mul_overflow(elems, (int64_t)dtype_info(p->dtype)->block_bytes, &bytes))
		return -1;
	return bytes;
}

int64_t
plan_extent_elems(const PlanExtent *e, const int64_t sym[SYM_COUNT])
{
	int64_t n;

	if (e->sym == SYM_one)
		return e->mul;
	int64_t div = e->div > 1 ? e->div : 1, s = sym[e->sym];
	if (s < 0 || __builtin_mul_overflow(e->mul, s / div + (s % div != 0), &n))
		return -1;
	return n;
}

int64_t
plan_slot_bytes(const Plan *p, int slot, const int64_t sym[SYM_COUNT])
{
	const PlanSlot *s = &p->slot[slot];
	int64_t sum = 0;

	for (int i = 0; i < s->n_part; i++) {
		int64_t n = plan_extent_elems(&s->part[i], sym);
		if (n < 0 || n > INT64_MAX - 255)
			return -1;
		n = (n + 255) & ~(int64_t)255;
		if (__builtin_add_overflow(sum, n, &sum))
			return -1;
	}
	return sum;
}

int64_t
plan_tensor_bytes(const PlanTensor *t)
{
	return layout_bytes(t);
}

const PlanProduct *
plan_product(const PlanKernel *k)
{
	for (int i = 0; i < k->n_launch; i++)
		if (!k->launch[i].fn)
			return &k->launch[i].product;
	return NULL;
}
