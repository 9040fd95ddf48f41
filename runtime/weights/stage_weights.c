/* Packs weights for memory of a device: tensor by tensor, in chunks that fit the device's
 * buffers. */
#include <stdlib.h>

#include "base/align.h"
#include "runtime/weights/weights_internal.h"
#include "formats/layout.h"

llmc_status
weights_layout(const Weights *w, int64_t *offset, int64_t *bytes, llmc_error *err)
{
	*bytes = 0;
	for (int i = 0; i < w->plan->n_tensor; i++) {
		int64_t n = plan_tensor_bytes(&w->plan->tensor[i]);
		if (n < 0 || n > INT64_MAX / 2 - *bytes)
			return error_set(err, LLMC_E_MEMORY, "tensor %s is too large",
			                 w->plan->tensor[i].id);
		offset[i] = *bytes;
		*bytes += ALIGN_UP(n, 256);
	}
	return LLMC_OK;
}

size_t
weights_chunk_bytes(const Weights *w)
{
	size_t most = 256;

	for (int i = 0; i < w->plan->n_tensor; i++) {
		size_t n = pack_chunk_bytes(&w->plan->tensor[i]);
		most = n > most ? n : most;
	}
	return most;
}

typedef struct StageWindow {
	const PackBuffers *room;
	int64_t base;
} StageWindow;

static llmc_status
stage_take(void *user, int64_t offset, size_t bytes, void **at, llmc_error *err)
{
	const StageWindow *in = user;

	return in->room->take(in->room->user, in->base + offset, bytes, at, err);
}

llmc_status
weights_stage(Weights *w, const WeightsOptions *opt, const int64_t *offset, const PackBuffers *room,
              llmc_error *err)
{
	const Plan *p = w->plan;
	const CheckpointTensor *src = w->src;
	size_t scratch_bytes = 64;
	llmc_status status = LLMC_OK;

	for (int i = 0; i < p->n_tensor; i++)
		if (pack_scratch_bytes(&p->tensor[i]) > scratch_bytes)
			scratch_bytes = pack_scratch_bytes(&p->tensor[i]);
	scratch_bytes = ALIGN_UP(scratch_bytes, 64);
	char *scratch = aligned_alloc(64, scratch_bytes * (size_t)threads_count(opt->threads));
	if (!scratch)
		return error_set(err, LLMC_E_MEMORY, "out of memory for packing");
	for (int i = 0; i < p->n_tensor && status == LLMC_OK; i++) {
		const PlanTensor *t = &p->tensor[i];
		StageWindow in = { room, offset[i] };
		PackBuffers piece = { .user = &in, .cap = room->cap, .take = stage_take };
		status = pack_chunks(t, src, &piece, opt->threads, scratch, scratch_bytes, err);
		for (int k = 0; src && !t->factor && k < t->n_src; k++)
			checkpoint_forget(&src[k]);
		if (src)
			src += t->n_src;
	}
	free(scratch);
	free(w->src);
	w->src = NULL;
	return status;
}
