/* Tensors of a plan in memory, in the layouts that the plan specifies. */
#ifndef LLMC_RUNTIME_WEIGHTS_H
#define LLMC_RUNTIME_WEIGHTS_H

#include "base/file.h"
#include "runtime/threads/threads.h"
#include "runtime/weights/checkpoint.h"

typedef struct Weights Weights;

typedef struct WeightsOptions {
	const char *path; /* checkpoint; may be NULL with random_weights */
	Threads *threads; /* threads that pack */
	bool random_weights;
	bool cache_packed; /* map packed weights from a file of the cache */
	/* write weights that had to be quantised to the cache, and read them from it */
	bool cache_made;
	bool cache_warned; /* the log has a warning that the cache cannot be written */
	/* for a model on two devices: plan of the other device; NULL: one device */
	const Plan *other;
	bool copied; /* pack all tensors, so that the file may change afterwards */
	/* size of a staging buffer for a GPU; progress is reported if the weights exceed 16
	 * buffers; 0: 16 MB */
	size_t stage_bytes;
	llmc_log_fn log;
	void *log_user;
} WeightsOptions;

/* Load the weights. weights_open finds every tensor in the checkpoint and is quick; weights_pack
 * packs them; weights_load does both. The plan has passed plan_check and outlives the weights. */
llmc_status weights_open(const Plan *plan, const WeightsOptions *opt, Weights **out,
                         llmc_error *err);
llmc_status weights_pack(Weights *w, const WeightsOptions *opt, llmc_error *err);
llmc_status weights_load(const Plan *plan, const WeightsOptions *opt, Weights **out,
                         llmc_error *err);
void weights_close(Weights *w);
/* Close the checkpoint of weights that were packed with `copied`. */
void weights_detach(Weights *w);
/* Free the packed tensors of weights that a device has copied. */
void weights_drop(Weights *w);
const void *weights_data(const Weights *w, int tensor);
/* Write to an adapter slot (PlanTensor.factor). No running step may read these elements. */
void weights_put(Weights *w, int tensor, int64_t offset, const void *data, size_t bytes);
const Checkpoint *weights_checkpoint(const Weights *w); /* NULL: random weights */
bool weights_from_cache(const Weights *w);
/* is the tensor mapped from a file, packed or not? */
bool weights_mapped(const Weights *w, int tensor);
/* Was a file that the weights are mapped from truncated since they were loaded? */
bool weights_lost(const Weights *w);

/* Buffers for packed bytes, in order. `take` returns memory for the next chunk: `bytes` (at most
 * cap) at `offset` of the tensor or region. When it is called, the previous chunk is complete. */
typedef struct PackBuffers {
	void *user;
	size_t cap;
	llmc_status (*take)(void *user, int64_t offset, size_t bytes, void **at, llmc_error *err);
} PackBuffers;

/* Pack for memory of a device, instead of weights_pack. weights_layout returns the offset of each
 * tensor in one region; weights_stage packs all bytes in chunks. A buffer holds at least
 * weights_chunk_bytes. No packed copy stays in host memory. */
llmc_status weights_layout(const Weights *w, int64_t *offset, int64_t *bytes, llmc_error *err);
size_t weights_chunk_bytes(const Weights *w);
llmc_status weights_stage(Weights *w, const WeightsOptions *opt, const int64_t *offset,
                          const PackBuffers *room, llmc_error *err);

/* ---- for weights.c, pack.c and pack_cache.c ---- */

/* Offsets of the packed tensors in one region; offset[i] is -1 if tensor i is used as stored. */
typedef struct PackMap {
	int64_t *offset; /* [n_tensor] */
	int64_t bytes;   /* size of the region */
} PackMap;

/* Can the tensor be used as stored in the file? If so, *data points to it. */
bool pack_in_place(const PlanTensor *t, const CheckpointTensor *src, const void **data);
/* Fill dst with tensor t from its sources src [t->n_src]; NULL: random weights. scratch: one part
 * of pack_scratch_bytes per thread */
llmc_status pack_tensor(const PlanTensor *t, const CheckpointTensor *src, void *dst,
                        Threads *threads, char *scratch, size_t scratch_bytes, llmc_error *err);
size_t pack_scratch_bytes(const PlanTensor *t); /* per thread */
/* Like pack_tensor, in chunks. pack_chunk_bytes returns the least chunk size. */
llmc_status pack_chunks(const PlanTensor *t, const CheckpointTensor *src, const PackBuffers *room,
                        Threads *threads, char *scratch, size_t scratch_bytes, llmc_error *err);
size_t pack_chunk_bytes(const PlanTensor *t);

/* Compute the cache key of these tensors of this checkpoint, as hex digits. */
llmc_status pack_cache_key(const Plan *p, const PackMap *map, const Checkpoint *c, char hex[65],
                           llmc_error *err);
/* Read a cache file into data [bytes]. *found is false and the status LLMC_OK if there is none. */
llmc_status pack_cache_read(const char *hex, int64_t bytes, Threads *threads, void *data,
                            bool *found, llmc_error *err);
llmc_status pack_cache_write(const char *hex, void *data, int64_t bytes, Threads *threads,
                             llmc_error *err);

/* Map a cache file; the packed data are the last `bytes` of *out; out->data is NULL if there is no
 * file. writable: pages may be written, which does not change the file. */
llmc_status pack_cache_map(const char *hex, int64_t bytes, bool writable, Threads *threads,
                           FileMap *out, llmc_error *err);
/* A cache file that is filled through a map: open it, fill data [bytes], finish it, and close it.
 * If it is closed without being finished, the file is deleted. */
typedef struct PackWriter PackWriter;
llmc_status pack_writer_open(const char *hex, int64_t bytes, PackWriter **out, void **data,
                             llmc_error *err);
llmc_status pack_writer_finish(PackWriter *w, bool writable, Threads *threads, FileMap *out,
                               llmc_error *err);
void pack_writer_close(PackWriter *w);

#endif
