/* Weights of an open runtime replaced by those of another checkpoint. The new weights are packed
 * while steps run. The swap changes pointers (CPU) or copies to the same addresses (GPU). */
#include <stdlib.h>
#include <string.h>

#include "base/free_memory.h"
#include "runtime/device.h"
#include "runtime/state/session_state.h"

/* Refuse what a swap does not cover. */
static llmc_status
check_replaceable(const Runtime *rt, llmc_error *err)
{
	const char *what = rt->n_rank > 1 || rt->world ? "a model on several devices or ranks"
	                   : rt->adapters              ? "a model with adapter slots"
	                   : !rt->device->replace      ? "a model on this device"
	                                               : NULL;

	return what ? error_set(err, LLMC_E_INPUT,
	                        "the weights of %s cannot be replaced while it is open; open it "
	                        "again",
	                        what)
	            : LLMC_OK;
}

/* Check that both checkpoints have the same rotary factors, because sessions keep tables made from
 * the first one. */
static llmc_status
check_factors(const Runtime *rt, const Checkpoint *c, llmc_error *err)
{
	for (int i = 0; i < rt->plan->n_rope; i++)
		for (int k = 0; k < 2; k++) {
			const PlanRope *r = &rt->plan->rope[i];
			const float *have = rt->factors[i][k];
			float *f;
			TRY(rope_factors_read(r, k, c, &f, err));
			const bool same =
			    !f || (have && !memcmp(f, have, (size_t)r->dims / 2 * sizeof *f));
			free(f);
			if (!same)
				return error_set(
				    err, LLMC_E_INPUT,
				    "tensor \"%s\": the rotary factors differ from those of the "
				    "open model; open it again",
				    r->factors_tensor[k]);
		}
	return LLMC_OK;
}

static llmc_status
check_memory(const Runtime *rt, llmc_error *err)
{
	const int64_t left = free_memory("").bytes;
	int64_t need = 0;

	for (int i = 0; i < rt->plan->n_tensor; i++)
		need += plan_tensor_bytes(&rt->plan->tensor[i]);
	return left > 0 && need > left
	           ? error_set(err, LLMC_E_FULL,
	                       "the new weights of %lld MB do not fit the free memory, %lld MB, "
	                       "next to the old ones",
	                       (long long)(need >> 20), (long long)(left >> 20))
	           : LLMC_OK;
}

llmc_status
runtime_prepare_weights(const Runtime *rt, const char *path, int n_threads, Weights **out,
                        llmc_error *err)
{
	WeightsOptions o = { .path = path, .copied = true };
	llmc_status status;

	*out = NULL;
	TRY(check_replaceable(rt, err));
	TRY_GOTO(weights_open(rt->plan, &o, out, err));
	TRY_GOTO(check_factors(rt, weights_checkpoint(*out), err));
	TRY_GOTO(check_memory(rt, err));
	TRY_GOTO(threads_open(n_threads > 0 ? n_threads : 1, &o.threads, err));
	TRY_GOTO(weights_pack(*out, &o, err));
	weights_detach(*out);
fail:
	threads_close(o.threads);
	if (status != LLMC_OK) {
		weights_close(*out);
		*out = NULL;
	}
	return status;
}

llmc_status
session_replace_weights(Session *s, Weights *w, llmc_error *err)
{
	Runtime *rt = s->rt;
	Weights *old = rt->weights;
	llmc_status status = rt->device->replace(s, w, err);

	if (status != LLMC_OK) {
		weights_close(w);
		return status;
	}
	rt->weights = w;
	rt->n_replaced++;
	weights_close(old);
	return LLMC_OK;
}
