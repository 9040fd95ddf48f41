/* Weights to the device: packed into two pinned buffers alternately, each copied while the other is
 * filled. */
#include "base/log.h"
#include "runtime/cuda/cuda.h"

enum { N_STAGE = 3, STAGE_BYTES = 16 << 20 };

typedef struct WeightUpload {
	CudaDevice *d;
	CUdeviceptr base;
	CUstream stream;
	char *buf[N_STAGE];
	CUevent event[N_STAGE];
	bool busy[N_STAGE]; /* a copy from it may be in flight */
	size_t cap;
	int at;             /* buffer being filled */
	int64_t first, end; /* range of bytes of the region that the buffer holds */
	int64_t total;
	bool report_progress; /* the load takes long enough to log its progress */
	int shown;            /* tenths logged so far */
	const WeightsOptions *opt;
	void (*poll)(void *user);
	void *poll_user;
} WeightUpload;

static void
report_progress(WeightUpload *l, int64_t done)
{
	int tenth = (int)(done * 10 / (l->total ? l->total : 1));

	if (!l->report_progress || tenth <= l->shown)
		return;
	l->shown = tenth;
	log_line(l->opt->log, l->opt->log_user, LLMC_LOG_PROGRESS,
	         "weights: %d of %d MB on the GPU", (int)(done >> 20), (int)(l->total >> 20));
}

/* Copy the content of the buffer and switch to the next one. */
static llmc_status
flush(WeightUpload *l, llmc_error *err)
{
	CudaDevice *d = l->d;

	if (l->end == l->first)
		return LLMC_OK;
	CUDA_TRY(d,
	         d->api.copy_up(l->base + (CUdeviceptr)l->first, l->buf[l->at],
	                        (size_t)(l->end - l->first), l->stream),
	         "copying weights to the GPU");
	CUDA_TRY(d, d->api.event_record(l->event[l->at], l->stream), "copying weights to the GPU");
	l->busy[l->at] = true;
	l->at = (l->at + 1) % N_STAGE;
	if (l->busy[l->at])
		CUDA_TRY(d, d->api.event_sync(l->event[l->at]), "copying weights to the GPU");
	l->busy[l->at] = false;
	report_progress(l, l->end);
	l->first = l->end;
	if (l->poll)
		l->poll(l->poll_user);
	return LLMC_OK;
}

static llmc_status
take(void *user, int64_t offset, size_t bytes, void **at, llmc_error *err)
{
	WeightUpload *l = user;

	if (l->end == l->first)
		l->first = l->end = offset;
	if (offset < l->end || offset + (int64_t)bytes - l->first > (int64_t)l->cap) {
		TRY(flush(l, err));
		l->first = offset;
	} else {
		for (int64_t i = l->end; i < offset; i++) /* padding between tensors */
			l->buf[l->at][i - l->first] = 0;
	}
	l->end = offset + (int64_t)bytes;
	*at = l->buf[l->at] + (offset - l->first);
	return LLMC_OK;
}

static llmc_status
load(WeightUpload *l, Weights *w, const int64_t *offset, llmc_error *err)
{
	CudaDevice *d = l->d;
	PackBuffers room = { .user = l, .take = take };

	l->cap = l->opt->stage_bytes ? l->opt->stage_bytes : STAGE_BYTES;
	l->report_progress = l->total > 16 * (int64_t)l->cap;
	if (l->cap < weights_chunk_bytes(w))
		l->cap = weights_chunk_bytes(w);
	if ((int64_t)l->cap > l->total && l->total)
		l->cap = (size_t)l->total;
	room.cap = l->cap;
	CUDA_TRY(d, d->api.stream_create(&l->stream, CU_STREAM_NON_BLOCKING),
	         "making a stream to load weights");
	for (int i = 0; i < N_STAGE; i++) {
		CUDA_TRY(d, d->api.host_alloc((void **)&l->buf[i], l->cap, CU_HOST_PORTABLE),
		         "pinning %zu MB to load weights", l->cap >> 20);
		CUDA_TRY(d, d->api.event_create(&l->event[i], CU_EVENT_NO_TIMING),
		         "making an event to load weights");
	}
	TRY(weights_stage(w, l->opt, offset, &room, err));
	TRY(flush(l, err));
	CUDA_TRY(d, d->api.stream_sync(l->stream), "copying weights to the GPU");
	report_progress(l, l->total); /* the region may continue after the last tensor */
	return LLMC_OK;
}

llmc_status
cuda_weights_load(CudaDevice *d, Weights *w, const WeightsOptions *opt, CUdeviceptr base,
                  const int64_t *offset, int64_t bytes, void (*poll)(void *user), void *poll_user,
                  llmc_error *err)
{
	WeightUpload l = { .d = d,
		           .base = base,
		           .total = bytes,
		           .opt = opt,
		           .poll = poll,
		           .poll_user = poll_user };
	llmc_status status = load(&l, w, offset, err);

	/* copies from the buffers must end before the buffers are freed */
	if (status != LLMC_OK && l.stream)
		(void)!d->api.stream_sync(l.stream);
	for (int i = 0; i < N_STAGE; i++) {
		if (l.event[i])
			CUDA_RELEASE(d->api.event_destroy(l.event[i]));
		if (l.buf[i])
			CUDA_RELEASE(d->api.host_free(l.buf[i]));
	}
	if (l.stream)
		CUDA_RELEASE(d->api.stream_destroy(l.stream));
	return status;
}
