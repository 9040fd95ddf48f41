/* Loads weights. Every tensor of the plan is found and checked before any byte is packed. Then each
 * tensor is packed once and its file pages are released, so that only one tensor at a time exists
 * twice in memory. Tensors that are used as stored stay mapped. */
#include "runtime/weights/weights_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/align.h"
#include "base/free_memory.h"
#include "base/log.h"
#include "formats/layout.h"

enum { HUGE_FROM = 32 << 20 };

/* Find the adapter's delta for a source and check that the source's rows lie within it. */
static llmc_status
find_delta(Peft *peft, const PlanTensor *t, const PlanSource *s, const PeftDelta **out,
           llmc_error *err)
{
	int64_t n = s->n_block * s->block;

	*out = NULL;
	if (!peft || !s->lora)
		return LLMC_OK;
	int64_t rows = s->transpose ? s->rows / t->cols * s->transpose : s->rows;
	TRY(peft_delta(
	    peft, s->lora,
	    !strchr(s->lora, '#') && s->lora_block == s->block && s->lora_stride == s->stride ? rows
	                                                                                      : -1,
	    t->cols, out, err));
	const int64_t source_rows = *out ? (*out)->rows : 0;
	if (*out &&
	    (s->col_total || s->lora_block < 1 || s->lora_first > source_rows ||
	     (n - 1) / s->lora_block >
	         (source_rows - s->lora_first) / (s->lora_stride ? s->lora_stride : 1) ||
	     s->lora_first + (n - 1) / s->lora_block * s->lora_stride + (n - 1) % s->lora_block >=
	         source_rows))
		return error_set(
		    err, LLMC_E_INPUT,
		    "tensor %s: the plan uses rows that the adapter's %s does not have", t->id,
		    s->lora);
	return LLMC_OK;
}

/* Find the adapter modules that another device of the model uses, so that they do not count as
 * unused. */
static llmc_status
find_others(const Plan *other, Peft *peft, llmc_error *err)
{
	const PeftDelta *delta;

	for (int i = 0; peft && other && i < other->n_tensor; i++)
		for (int k = 0; k < other->tensor[i].n_src; k++)
			TRY(find_delta(peft, &other->tensor[i], &other->tensor[i].src[k], &delta,
			               err));
	return LLMC_OK;
}

/* Find the sources of all tensors, in order of tensors. other: plan of the other device of a model
 * on two devices */
static llmc_status
find_sources(const Plan *p, const Plan *other, const Checkpoint *c, Peft *peft,
             CheckpointTensor **out, llmc_error *err)
{
	size_t n = 0;

	for (int i = 0; i < p->n_tensor; i++)
		n += (size_t)p->tensor[i].n_src;
	CheckpointTensor *src = *out = calloc(n + 1, sizeof *src);
	if (!src)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a list of %zu tensors", n);
	for (int i = 0; i < p->n_tensor; i++)
		for (int k = 0; k < p->tensor[i].n_src; k++, src++) {
			if (p->tensor[i].factor)
				continue; /* adapter slots are filled later */
			TRY(checkpoint_source(c, &p->tensor[i], &p->tensor[i].src[k], src, err));
			TRY(find_delta(peft, &p->tensor[i], &p->tensor[i].src[k], &src->delta,
			               err));
		}
	TRY(find_others(other, peft, err));
	if (peft && peft_unused(peft))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the adapter changes %s, which is not a matrix of "
		                 "this model or one that llmc does not adapt",
		                 p->lora, peft_unused(peft));
	return LLMC_OK;
}

/* Return the number of matrices that are quantised while they are read. */
static int
converted(const Plan *p, const CheckpointTensor *src)
{
	int n = 0;

	for (int i = 0; src && i < p->n_tensor; src += p->tensor[i].n_src, i++)
		n += p->tensor[i].cols && !p->tensor[i].factor && !src->made &&
		     dtype_is_float(src->dtype) && !dtype_is_float(p->tensor[i].dtype);
	return n;
}

/* Choose the tensors to pack, and their offsets: all tensors if src is NULL or `copied` is set */
static llmc_status
lay_out(const Plan *p, const CheckpointTensor *src, bool copied, PackMap *map, Weights *w,
        llmc_error *err)
{
	map->offset = calloc((size_t)p->n_tensor + 1, sizeof *map->offset);
	if (!map->offset)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d tensors", p->n_tensor);
	for (int i = 0; i < p->n_tensor; i++) {
		const PlanTensor *t = &p->tensor[i];
		if (src && !copied && !t->factor && pack_in_place(t, src, &w->data[i])) {
			map->offset[i] = -1;
		} else {
			int64_t bytes = plan_tensor_bytes(t);
			if (bytes < 0 || bytes > INT64_MAX / 2 - map->bytes)
				return error_set(err, LLMC_E_MEMORY, "tensor %s is too large",
				                 t->id);
			map->offset[i] = map->bytes;
			map->bytes += ALIGN_UP(bytes, 256);
		}
		if (src)
			src += t->n_src;
	}
	return LLMC_OK;
}

static llmc_status
take_region(const PackMap *map, Weights *w, llmc_error *err)
{
	w->region_bytes = (size_t)map->bytes + 4096;
	w->region = mmap(NULL, w->region_bytes, PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (w->region == MAP_FAILED) {
		w->region = NULL;
		return error_set(err, LLMC_E_MEMORY,
		                 "out of memory: the packed weights need %lld MB",
		                 (long long)(map->bytes >> 20));
	}
	if (map->bytes > HUGE_FROM) /* fewer page faults while packing; wastes less than 2 MB */
		(void)madvise(w->region, w->region_bytes, MADV_HUGEPAGE);
	return LLMC_OK;
}

static llmc_status
pack_all(const Plan *p, const WeightsOptions *o, const CheckpointTensor *src, const PackMap *map,
         char *region, llmc_error *err)
{
	size_t scratch_bytes = 64;
	llmc_status status = LLMC_OK;

	for (int i = 0; i < p->n_tensor; i++)
		if (map->offset[i] >= 0 && pack_scratch_bytes(&p->tensor[i]) > scratch_bytes)
			scratch_bytes = pack_scratch_bytes(&p->tensor[i]);
	scratch_bytes = ALIGN_UP(scratch_bytes, 64);
	char *scratch = aligned_alloc(64, scratch_bytes * (size_t)threads_count(o->threads));
	if (!scratch)
		return error_set(err, LLMC_E_MEMORY, "out of memory for packing");
	for (int i = 0; i < p->n_tensor; i++) {
		const PlanTensor *t = &p->tensor[i];
		if (map->offset[i] >= 0) {
			status = pack_tensor(t, src, region + map->offset[i], o->threads, scratch,
			                     scratch_bytes, err);
			if (status != LLMC_OK)
				break;
			for (int k = 0; src && !t->factor && k < t->n_src; k++)
				checkpoint_forget(&src[k]);
		}
		if (src)
			src += t->n_src;
	}
	free(scratch);
	return status;
}

static void
log_quantising(const WeightsOptions *o, int n, bool cache)
{
	if (n)
		log_line(o->log, o->log_user, LLMC_LOG_INFO,
		         "quantising %d matrices of the checkpoint as specified by storage%s", n,
		         cache ? "; the cache keeps them for the next run" : "");
}

static bool
any_written(const Plan *p) /* adapter slots are filled later */
{
	bool any = false;

	for (int i = 0; i < p->n_tensor; i++)
		any |= p->tensor[i].factor;
	return any;
}

static void
point(const Plan *p, const PackMap *map, const char *region, Weights *w)
{
	for (int i = 0; i < p->n_tensor; i++)
		if (map->offset[i] >= 0)
			w->data[i] = region + map->offset[i];
}

/* Map the cache file; create it if it is missing. E_IO: it cannot be created. */
static llmc_status
map_packed(const Plan *p, const WeightsOptions *o, const CheckpointTensor *src, const PackMap *map,
           const char *key, int n_quant, Weights *w, llmc_error *err)
{
	const bool writable = any_written(p);
	PackWriter *writer = NULL;
	llmc_error why = { 0 };
	void *data;
	llmc_status status =
	    pack_cache_map(key, map->bytes, writable, o->threads, &w->packed, &why);

	if (status != LLMC_OK)
		log_line(o->log, o->log_user, LLMC_LOG_WARNING,
		         "packed weights in the cache are not used: %s", why.text);
	w->cached = w->packed.data;
	if (!w->cached) {
		TRY(pack_writer_open(key, map->bytes, &writer, &data, err));
		log_quantising(o, n_quant, true);
		status = pack_all(p, o, src, map, data, err);
		if (status == LLMC_OK)
			status = pack_writer_finish(writer, writable, o->threads, &w->packed, err);
		pack_writer_close(writer);
		TRY(status);
	}
	point(p, map, (const char *)w->packed.data + (w->packed.size - (size_t)map->bytes), w);
	return LLMC_OK;
}

/* Read the packed weights from the cache; if they are not there, pack them and write the cache. A
 * cache failure is a warning, never an error. */
static llmc_status
read_packed(const Plan *p, const WeightsOptions *o, const CheckpointTensor *src, const PackMap *map,
            const char *key, int n_quant, Weights *w, llmc_error *err)
{
	const bool cache = *key;
	llmc_error why = { 0 };

	TRY(take_region(map, w, err));
	if (cache &&
	    pack_cache_read(key, map->bytes, o->threads, w->region, &w->cached, &why) != LLMC_OK)
		log_line(o->log, o->log_user, LLMC_LOG_WARNING,
		         "packed weights in the cache are not used: %s", why.text);
	if (!w->cached) {
		log_quantising(o, n_quant, cache);
		TRY(pack_all(p, o, src, map, w->region, err));
		if (cache &&
		    pack_cache_write(key, w->region, map->bytes, o->threads, &why) != LLMC_OK)
			log_line(o->log, o->log_user, LLMC_LOG_WARNING,
			         "packed weights are not kept for the next time: %s (LLMC_CACHE "
			         "names another folder)",
			         why.text);
	}
	point(p, map, w->region, w);
	return LLMC_OK;
}

static llmc_status
load_packed(const Plan *p, const WeightsOptions *o, const CheckpointTensor *src, const PackMap *map,
            Weights *w, llmc_error *err)
{
	const int n_quant = converted(p, src);
	/* not with an adapter, which the key does not cover */
	const bool cache = src && map->bytes && !w->peft;
	char key[65] = "";
	llmc_error why = { 0 };

	if (cache && (o->cache_packed || (n_quant && o->cache_made)) &&
	    pack_cache_key(p, map, w->checkpoint, key, &why) != LLMC_OK)
		*key = 0;
	if (*key && o->cache_packed) {
		llmc_status status = map_packed(p, o, src, map, key, n_quant, w, &why);
		if (status != LLMC_E_IO) {
			if (status != LLMC_OK && err)
				*err = why;
			return status;
		}
		const int64_t left = free_memory("").bytes;
		if (map->bytes > left)
			return error_set(
			    err, LLMC_E_FULL,
			    "packed weights of %lld MB do not fit the free memory, %lld "
			    "MB, and cannot be a file: %s (LLMC_CACHE names another "
			    "folder)",
			    (long long)(map->bytes >> 20), (long long)(left >> 20), why.text);
		if (!o->cache_warned)
			log_line(
			    o->log, o->log_user, LLMC_LOG_WARNING,
			    "packed weights are not kept for the next time: %s (LLMC_CACHE names "
			    "another folder)",
			    why.text);
		*key = 0;
	}
	return read_packed(p, o, src, map, key, n_quant, w, err);
}

llmc_status
weights_open(const Plan *plan, const WeightsOptions *opt, Weights **out, llmc_error *err)
{
	llmc_status status = LLMC_OK;
	Weights *w = calloc(1, sizeof *w);

	*out = NULL;
	if (!w || !(w->data = calloc((size_t)plan->n_tensor + 1, sizeof *w->data))) {
		status =
		    error_set(err, LLMC_E_MEMORY, "out of memory for %d tensors", plan->n_tensor);
		goto fail;
	}
	w->plan = plan;
	if (!opt->random_weights) {
		if (!opt->path) {
			status = error_set(err, LLMC_E_INPUT,
			                   "the model has no path to its weights: pass "
			                   "their file or folder (--weights PATH), or "
			                   "use --random-weights");
			goto fail;
		}
		TRY_GOTO(checkpoint_open(opt->path, &w->checkpoint, err));
		TRY_GOTO(checkpoint_add_model(w->checkpoint, plan->draft.model, err));
		if (plan->lora)
			TRY_GOTO(peft_open(plan->lora, plan->lora_scale, &w->peft, err));
		TRY_GOTO(find_sources(plan, opt->other, w->checkpoint, w->peft, &w->src, err));
	}
	*out = w;
	return LLMC_OK;
fail:
	weights_close(w);
	return status;
}

llmc_status
weights_pack(Weights *w, const WeightsOptions *opt, llmc_error *err)
{
	PackMap map = { 0 };
	llmc_status status;

	TRY_GOTO(lay_out(w->plan, w->src, opt->copied, &map, w, err));
	TRY_GOTO(load_packed(w->plan, opt, w->src, &map, w, err));
fail:
	free(w->src);
	w->src = NULL;
	free(map.offset);
	return status;
}

llmc_status
weights_load(const Plan *plan, const WeightsOptions *opt, Weights **out, llmc_error *err)
{
	TRY(weights_open(plan, opt, out, err));
	llmc_status status = weights_pack(*out, opt, err);
	if (status != LLMC_OK) {
		weights_close(*out);
		*out = NULL;
	}
	return status;
}

void
weights_close(Weights *w)
{
	if (!w)
		return;
	if (w->region)
		munmap(w->region, w->region_bytes);
	file_unmap(&w->packed);
	checkpoint_close(w->checkpoint);
	peft_close(w->peft);
	free(w->src);
	free(w->data);
	free(w);
}

void
weights_detach(Weights *w)
{
	checkpoint_close(w->checkpoint);
	peft_close(w->peft);
	w->checkpoint = NULL;
	w->peft = NULL;
}

void
weights_drop(Weights *w)
{
	if (w->region)
		munmap(w->region, w->region_bytes);
	w->region = NULL;
	memset(w->data, 0, (size_t)w->plan->n_tensor * sizeof *w->data);
}

const void *
weights_data(const Weights *w, int tensor)
{
	return w->data[tensor];
}

void
weights_put(Weights *w, int tensor, int64_t offset, const void *data, size_t bytes)
{
	memcpy((char *)(uintptr_t)w->data[tensor] + offset, data, bytes);
}

const Checkpoint *
weights_checkpoint(const Weights *w)
{
	return w->checkpoint;
}

bool
weights_from_cache(const Weights *w)
{
	return w->cached;
}

bool
weights_lost(const Weights *w)
{
	for (int i = 0; i < w->plan->n_tensor; i++)
		if (file_lost(w->data[i]))
			return true;
	return false;
}

bool
weights_mapped(const Weights *w, int tensor)
{
	const uintptr_t at = (uintptr_t)w->data[tensor], region = (uintptr_t)w->region;

	return at && (at < region || at >= region + w->region_bytes);
}
