/* Pages of a session in device memory, and pages of its prefix cache in host memory. Page
 * operations that steps need are queued between them, on their stream; background copies have their
 * own stream. */
#include "runtime/cuda/cuda_session.h"

#include <string.h>

/* Latch the error of a void call; the next step returns it. */
static void
latch_error(CudaSession *c, CUresult r, const char *what)
{
	if (r != CU_OK && c->failed == LLMC_OK)
		c->failed = cuda_error(&c->m->dev, r, &c->why, "%s", what);
}

static bool
enter_quietly(CudaSession *c)
{
	CUresult r = c->m->dev.api.ctx_push(c->m->dev.ctx);

	latch_error(c, r, "using the GPU");
	return r == CU_OK;
}

/* Zero a page in all layers by one driver call if possible: a call costs microseconds on host and
 * device, and a prompt allocates many pages. */
static void
page_clear(void *user, void *at, size_t bytes, size_t stride, int n)
{
	CudaSession *c = user;
	CudaApi *api = &c->m->dev.api;
	CUresult r = CU_OK;

	if (!enter_quietly(c))
		return;
	if (n > 1 && stride <= INT32_MAX) /* the largest pitch that a GPU accepts */
		r = api->set8_rows(cuda_address(at), stride, 0, bytes, (size_t)n, c->stream);
	else
		for (int i = 0; i < n && r == CU_OK; i++)
			r = api->set8(cuda_address(at) + (CUdeviceptr)i * stride, 0, bytes,
			              c->stream);
	latch_error(c, r, "clearing KV pages");
	cuda_leave(&c->m->dev);
}

static llmc_status
page_alloc(void *user, size_t bytes, void **out, llmc_error *err)
{
	CudaSession *c = user;
	CudaDevice *d = &c->m->dev;
	CUdeviceptr p = 0;

	*out = NULL;
	const bool entered = enter_quietly(c); /* latches the reason if it fails */
	CUresult r = CU_OK;
	if (entered) {
		r = d->api.mem_alloc(&p, bytes);
		cuda_leave(d);
	}
	if (!entered || r != CU_OK) {
		if (entered)
			c->failed = cuda_error(d, r, &c->why, "allocating %zu MB for the KV cache",
			                       bytes >> 20);
		if (err)
			*err = c->why;
		return c->failed;
	}
	page_clear(c, (void *)(uintptr_t)p, bytes, 0, 1);
	*out = (void *)(uintptr_t)p;
	return LLMC_OK;
}

static void
page_free(void *user, void *mem, size_t bytes)
{
	CudaSession *c = user;

	(void)bytes;
	if (mem && enter_quietly(c)) {
		CUDA_RELEASE(c->m->dev.api.mem_free(cuda_address(mem)));
		cuda_leave(&c->m->dev);
	}
}

static void
page_copy(void *user, void *to, const void *from, size_t bytes)
{
	CudaSession *c = user;

	if (enter_quietly(c)) {
		latch_error(
		    c,
		    c->m->dev.api.copy_on(cuda_address(to), cuda_address(from), bytes, c->stream),
		    "copying KV pages");
		cuda_leave(&c->m->dev);
	}
}

static void
page_read(void *user, void *host, const void *at, size_t bytes)
{
	CudaSession *c = user;

	memset(host, 0, bytes);
	if (enter_quietly(c)) {
		latch_error(c, c->m->dev.api.copy_down(host, cuda_address(at), bytes, c->stream),
		            "saving KV pages");
		latch_error(c, c->m->dev.api.stream_sync(c->stream), "saving KV pages");
		cuda_leave(&c->m->dev);
	}
}

/* `host` is pageable memory, so the driver has read it when the call returns. */
static void
page_write(void *user, void *at, const void *host, size_t bytes)
{
	CudaSession *c = user;

	if (enter_quietly(c)) {
		latch_error(c, c->m->dev.api.copy_up(cuda_address(at), host, bytes, c->stream),
		            "restoring KV pages");
		cuda_leave(&c->m->dev);
	}
}

/* ---- background copies ---- */

static CUresult
open_copies(CudaSession *c)
{
	CudaApi *api = &c->m->dev.api;
	CUresult r = api->stream_create(&c->copies, CU_STREAM_NON_BLOCKING);

	if (r == CU_OK)
		r = api->event_create(&c->reached, CU_EVENT_NO_TIMING);
	for (int i = 0; i < CUDA_COPIES && r == CU_OK; i++)
		r = api->event_create(&c->copied[i], CU_EVENT_NO_TIMING);
	return r;
}

static llmc_status
host_pin(void *user, size_t bytes, void **out, llmc_error *err)
{
	CudaSession *c = user;
	CudaDevice *d = &c->m->dev;

	*out = NULL;
	TRY(cuda_enter(d, err));
	CUresult r = open_copies(c);
	if (r == CU_OK)
		r = d->api.host_alloc(out, bytes, CU_HOST_PORTABLE);
	cuda_leave(d);
	CUDA_TRY(d, r, "pinning %zu MB of host memory for KV pages (kv.host)", bytes >> 20);
	return LLMC_OK;
}

static void
host_unpin(void *user, void *mem, size_t bytes)
{
	CudaSession *c = user;
	CudaDevice *d = &c->m->dev;

	(void)bytes;
	if (enter_quietly(c)) {
		CUDA_RELEASE(d->api.stream_sync(c->copies));
		CUDA_RELEASE(d->api.host_free(mem));
		cuda_leave(d);
	}
}

void
cuda_pages_close(CudaSession *c, bool current)
{
	CudaApi *api = &c->m->dev.api;

	if (!current || !c->copies)
		return;
	for (int i = 0; i < CUDA_COPIES; i++)
		if (c->copied[i])
			CUDA_RELEASE(api->event_destroy(c->copied[i]));
	if (c->reached)
		CUDA_RELEASE(api->event_destroy(c->reached));
	CUDA_RELEASE(api->stream_destroy(c->copies));
}

static void
copies_begin(void *user)
{
	CudaSession *c = user;
	CudaApi *api = &c->m->dev.api;

	if (enter_quietly(c)) {
		latch_error(c, api->event_record(c->reached, c->stream),
		            "copying KV pages in the background");
		latch_error(c, api->stream_wait_event(c->copies, c->reached, 0),
		            "copying KV pages in the background");
		cuda_leave(&c->m->dev);
	}
}

static void
copies_out(void *user, void *host, const void *at, size_t bytes)
{
	CudaSession *c = user;

	if (enter_quietly(c)) {
		latch_error(c, c->m->dev.api.copy_down(host, cuda_address(at), bytes, c->copies),
		            "copying KV pages to the host");
		cuda_leave(&c->m->dev);
	}
}

static void
copies_in(void *user, void *at, const void *host, size_t bytes)
{
	CudaSession *c = user;

	if (enter_quietly(c)) {
		latch_error(c, c->m->dev.api.copy_up(cuda_address(at), host, bytes, c->copies),
		            "copying KV pages from the host");
		cuda_leave(&c->m->dev);
	}
}

static void
copies_end(void *user, uint32_t number)
{
	CudaSession *c = user;

	if (enter_quietly(c)) {
		latch_error(c,
		            c->m->dev.api.event_record(c->copied[number % CUDA_COPIES], c->copies),
		            "copying KV pages in the background");
		cuda_leave(&c->m->dev);
	}
}

/* The event of this group may have been recorded again for a later group. Waiting for that one is
 * enough, because groups run in order. */
static void
copies_wait(void *user, uint32_t number)
{
	CudaSession *c = user;

	if (enter_quietly(c)) {
		latch_error(
		    c,
		    c->m->dev.api.stream_wait_event(c->stream, c->copied[number % CUDA_COPIES], 0),
		    "waiting for copies of KV pages");
		cuda_leave(&c->m->dev);
	}
}

static bool
copies_over(void *user, uint32_t number)
{
	CudaSession *c = user;

	if (!enter_quietly(c))
		return true; /* the next step reports it */
	CUresult r = c->m->dev.api.event_query(c->copied[number % CUDA_COPIES]);
	cuda_leave(&c->m->dev);
	if (r == CU_NOT_READY)
		return false;
	latch_error(c, r, "waiting for copies of KV pages");
	return true;
}

KvMem
cuda_pages(CudaSession *c)
{
	return (KvMem){ .user = c,
		        .alloc = page_alloc,
		        .free = page_free,
		        .copy = page_copy,
		        .clear = page_clear,
		        .read = page_read,
		        .write = page_write,
		        .pin = host_pin,
		        .unpin = host_unpin,
		        .begin = copies_begin,
		        .out = copies_out,
		        .in = copies_in,
		        .end = copies_end,
		        .wait = copies_wait,
		        .over = copies_over };
}
