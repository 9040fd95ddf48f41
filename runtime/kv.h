/* KV pages of a session: who holds which. All pools share one numbering of pages, so one block table serves every layer.
 * Pages are counted: a fork shares them, and a shared page is copied before the first write to it. */
#ifndef LLMC_RUNTIME_KV_H
#define LLMC_RUNTIME_KV_H

#include "runtime/plan/plan.h"

/* Where pages live. Addresses are only ever handed back to these functions and to kernels. Calls take effect in the order
 * of the session's steps; what fails in one that returns nothing must make the next step fail. */
typedef struct KvMem {
	void *user;
	llmc_status (*alloc)(void *user, size_t bytes, void **out, llmc_error *err); /* zeroed */
	void (*free)(void *user, void *mem, size_t bytes);
	void (*copy)(void *user, void *to, const void *from, size_t bytes);
	void (*clear)(void *user, void *at, size_t bytes);
	void (*read)(void *user, void *host, const void *at, size_t bytes);  /* returns when host is filled */
	void (*write)(void *user, void *at, const void *host, size_t bytes); /* host may be reused on return */
} KvMem;

typedef struct KvSeq {
	bool     used;
	int32_t  len, n_page;
	int32_t *page;        /* [max_page] */
} KvSeq;

typedef struct Kv {
	const Plan *plan;
	KvMem    mem;
	int32_t  n_page, n_free, max_page, n_seq; /* max_page: of one sequence */
	int32_t *free_page;   /* stack */
	int32_t *refs;        /* [n_page] */
	int32_t *drops;       /* [n_page] zeros outside kv_need */
	bool    *stale;       /* [n_page] has held positions of somebody else */
	KvSeq   *seq;         /* [n_seq] */
	int32_t *tables;      /* memory of seq[].page */
	char   **base;        /* [n_pool] pools, layers outermost */
	size_t  *pool_bytes;
} Kv;

/* Pages and bytes for limits; -1: overflow. */
int64_t     kv_pages(int64_t kv_tokens, int64_t context, int64_t seqs, bool kv_tokens_given);
int64_t     kv_bytes(const Plan *p, int64_t n_page);

llmc_status kv_open(Kv *kv, const Plan *p, int32_t n_page, int32_t context, int32_t seqs, llmc_error *err);
/* The same with pages elsewhere than in host memory. */
llmc_status kv_open_on(Kv *kv, const KvMem *mem, const Plan *p, int32_t n_page, int32_t context, int32_t seqs,
                       llmc_error *err);
void        kv_release(Kv *kv);
/* First page of a layer of a pool. */
void       *kv_layer(const Kv *kv, int pool, int layer_slot);

int32_t     kv_seq_new(Kv *kv);                       /* -1: all taken */
int32_t     kv_seq_fork(Kv *kv, int32_t from);
void        kv_seq_trim(Kv *kv, int32_t q, int32_t len); /* len <= its length */
void        kv_seq_free(Kv *kv, int32_t q);
/* Pages that appending add[i] positions to q[i], different sequences, will take. */
int64_t     kv_need(Kv *kv, const int32_t *q, const int32_t *add, size_t n);
/* Make room for `add` more positions, which kv_need has found; the length grows when the step is done. */
void        kv_extend(Kv *kv, int32_t q, int32_t add);

#endif
