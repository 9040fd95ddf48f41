/* The tensors of a plan in memory, in the layouts that the plan asks for. */
#ifndef LLMC_RUNTIME_WEIGHTS_H
#define LLMC_RUNTIME_WEIGHTS_H

#include "runtime/threads/threads.h"
#include "runtime/weights/checkpoint.h"

typedef struct Weights Weights;

typedef struct WeightsOptions {
	const char *path; /* checkpoint; may be NULL with random_weights */
	Threads *threads; /* pack side by side */
	bool random_weights, cache_packed;
	bool cache_made;    /* keep in the cache what had to be quantised, as with cache_packed */
	size_t stage_bytes; /* of a buffer on the way to a GPU, 16 of them are worth telling
	                       progress; 0: 16 MB */
	llmc_log_fn log;
	void *log_user;
} WeightsOptions;

/* The plan has passed plan_check and outlives the weights. weights_load is weights_open, which
 * finds every tensor in the checkpoint, and weights_pack, which takes the time. */
llmc_status weights_open(const Plan *plan, const WeightsOptions *opt, Weights **out,
                         llmc_error *err);
llmc_status weights_pack(Weights *w, const WeightsOptions *opt, llmc_error *err);
llmc_status weights_load(const Plan *plan, const WeightsOptions *opt, Weights **out,
                         llmc_error *err);
void weights_close(Weights *w);
const void *weights_data(const Weights *w, int tensor);
/* Into a factor's memory (PlanTensor.factor): elements that no running step reads */
void weights_put(Weights *w, int tensor, int64_t offset, const void *data, size_t bytes);
const Checkpoint *weights_checkpoint(const Weights *w); /* NULL: random */
bool weights_from_cache(const Weights *w);

/* Room for the next piece of packed bytes: at most cap of them, at `offset` of the tensor or
 * region, in order. The piece before has been filled when the next one is asked for. */
typedef struct PackBuffers {
	void *user;
	size_t cap;
	llmc_status (*take)(void *user, int64_t offset, size_t bytes, void **at, llmc_error *err);
} PackBuffers;

/* For memory elsewhere, instead of weights_pack: where each tensor goes in one region, and then all
 * bytes, piece by piece, with offsets of the region. room->cap >= weights_piece_bytes. Nothing
 * stays in host memory. */
llmc_status weights_layout(const Weights *w, int64_t *offset, int64_t *bytes, llmc_error *err);
size_t weights_piece_bytes(const Weights *w);
llmc_status weights_stage(Weights *w, const WeightsOptions *opt, const int64_t *offset,
                          const PackBuffers *room, llmc_error *err);

/* ---- for weights.c, pack.c and pack_cache.c ---- */

/* Where the tensors that are not used in place lie: offset[i] in one region, or -1. */
typedef struct PackMap {
	int64_t *offset; /* [n_tensor] */
	int64_t bytes;   /* of the region */
} PackMap;

/* May the tensor be used where it lies in the file? Then *data is it. */
bool pack_in_place(const PlanTensor *t, const CheckpointTensor *src, const void **data);
/* Fill dst with tensor t from its sources; src [t->n_src], or NULL: noise. scratch: of
 * pack_scratch_bytes, a part each */
llmc_status pack_tensor(const PlanTensor *t, const CheckpointTensor *src, void *dst,
                        Threads *threads, char *scratch, size_t scratch_bytes, llmc_error *err);
size_t pack_scratch_bytes(const PlanTensor *t); /* per thread */
/* The same in pieces; the smallest possible piece */
llmc_status pack_pieces(const PlanTensor *t, const CheckpointTensor *src, const PackBuffers *room,
                        Threads *threads, char *scratch, size_t scratch_bytes, llmc_error *err);
size_t pack_piece_bytes(const PlanTensor *t);

/* The cache file of these tensors from this checkpoint. hex: its key */
llmc_status pack_cache_key(const Plan *p, const PackMap *map, const Checkpoint *c, char hex[65],
                           llmc_error *err);
/* Read it into data [bytes]. Not found, and LLMC_OK: there is none. */
llmc_status pack_cache_read(const char *hex, int64_t bytes, Threads *threads, void *data,
                            bool *found, llmc_error *err);
llmc_status pack_cache_write(const char *hex, void *data, int64_t bytes, Threads *threads,
                             llmc_error *err);

#endif
