/* KV pages and recurrent states of a session: allocation, sharing, and the prefix cache.
 *
 * A state belongs to one sequence, by its number; a fork copies it. It holds what the sequence's
 * last position left. Kernels treat it as zero before position 0, so none is cleared. All pools
 * share one numbering of pages, so one block table serves every layer. Pages have reference counts:
 * a fork shares them, and a shared page is copied before the first write to it.
 *
 * Windowed layers (PlanPool.keep) have fewer pages, numbered separately. A page has a window page
 * while some sequence may still see it, and until the window page is needed elsewhere
 * (kv_window.c). Kernels of these layers use the second half of a sequence's table. Exact pages
 * (PlanPool.recent, sinks) are numbered as window pages too, in all layers that have them: a page
 * has one while a sequence reads it exactly; the first pages of a sequence always have one. The
 * exact pages of a layer lie before its other pages, in reverse order.
 *
 * Prefix cache: kv_prefix_keep records the tokens of full pages. A prompt that begins with the same
 * tokens finds them again, also after their last holder is gone: such pages are reused only when no
 * other page is free, the least recently used first. A page is identified by its previous page and
 * its own tokens, which are compared one by one, so no hash collision matters.
 *
 * In models with recurrent states, a prompt can only continue from a page that has a snapshot of
 * the states. Snapshots are taken when a step ends at the end of a page. A sequence has two that
 * move with it: one for steps of several rows (its prompt) and one for steps of one row (its
 * answer). So the last page boundary of each is kept; the least recently used snapshot is evicted.
 * Before draft tokens run, a sequence is marked: the mark is a snapshot of its own, to which the
 * sequence can be trimmed.
 *
 * Host memory (kv.host, kv_host.c): pages that the prefix cache would evict are copied there
 * concurrently with steps, and come back when a prompt matches them. A preempted sequence finds its
 * own pages the same way. */
#ifndef LLMC_RUNTIME_KV_H
#define LLMC_RUNTIME_KV_H

#include "plan/plan.h"

/* Memory of pages. Addresses are only passed to these functions and to kernels. Calls take effect
 * in the order of the session's steps. A failure in a function that returns void makes the next
 * step fail. */
typedef struct KvMem {
	void *user;
	llmc_status (*alloc)(void *user, size_t bytes, void **out, llmc_error *err); /* zeroed */
	void (*free)(void *user, void *mem, size_t bytes);
	void (*copy)(void *user, void *to, const void *from, size_t bytes);
	void (*clear)(void *user, void *at, size_t bytes, size_t apart,
	              int n); /* n chunks of `bytes` bytes; starts are `apart` bytes apart */
	void (*read)(void *user, void *host, const void *at,
	             size_t bytes); /* returns when host is filled */
	void (*write)(void *user, void *at, const void *host,
	              size_t bytes); /* host may be reused on return */
	/* Copies to and from pinned host memory, concurrent with steps. They run in order, in
	 * numbered groups: begin, copies, end. A group runs after all steps and calls that were
	 * issued before its begin; what is issued after wait(number) runs after that group and all
	 * earlier ones. over(number): has the group ended? */
	llmc_status (*pin)(void *user, size_t bytes, void **out, llmc_error *err);
	void (*unpin)(void *user, void *mem, size_t bytes);
	void (*begin)(void *user);
	void (*out)(void *user, void *host, const void *at, size_t bytes);
	void (*in)(void *user, void *at, const void *host, size_t bytes);
	void (*end)(void *user, uint32_t number);
	void (*wait)(void *user, uint32_t number);
	bool (*over)(void *user, uint32_t number);
} KvMem;

enum {
	KV_MAX_ROLLBACK = 32
}; /* positions by which a sequence can always be trimmed; at least the most draft tokens */

typedef struct KvSeq {
	bool used;
	int32_t len, n_page;
	int32_t
	    /* number of first pages that need no window page any more, even after a trim by
	     * KV_MAX_ROLLBACK positions; Kv.sinks of them still have one */
	    n_windowless;
	/* [stride]: pages; from max_page on their window pages, of those that need one */
	int32_t *page;
	int32_t n_kept;        /* pages recorded in the prefix cache */
	int64_t prefix_parent; /* serial of the last of them */
	int32_t prefix_len;    /* length when the sequence was last recorded */
	/* number of the mark, from 1 on, that holds its states at mark_len positions; 0: none */
	int32_t mark, mark_len;
	uint32_t coming; /* copy group after which its pages are on the device */
} KvSeq;

/* A page of the prefix cache; pages in host memory have numbers from n_page on */
typedef struct KvCachedPage {
	int64_t serial; /* 0: not in the cache */
	int64_t parent; /* serial of the page before; of a first page: the root, negative */
	int32_t next;   /* next page in its hash bucket; -1: none */
	int32_t older,
	    /* neighbours in the LRU list of pages without a holder, or of pages in host memory */
	    newer;
	int32_t snapshot; /* number of its snapshot, from 1 on; 0: none */
	int32_t copy; /* copy in host memory while no sequence holds the page, from 1 on; 0: none */
	int32_t tok[PLAN_KV_PAGE];
} KvCachedPage;

/* The states at the end of a page */
typedef struct KvSnapshot {
	int32_t page; /* -1: free */
	int32_t seq;  /* sequence whose moving snapshot it is; -1: none */
	bool prompt;  /* moves with its prompt, else with its answer */
	uint64_t used;
} KvSnapshot;

/* Operations on the memory of pages and states outside of steps. Memory elsewhere that follows the
 * records of this Kv repeats them with kv_apply.
 *
 *   PAGE  page `to`, in every layer of every pool, becomes a copy of page `from`; -1: zeros
 *   FORK  the states of sequence `to` become those of sequence `from`
 *   TAKE  the states of sequence `from` become snapshot `to`
 *   GIVE  the states of sequence `to` become snapshot `from`
 *   OUT   device page `from` is copied to host page `to`
 *   IN    host page `from` is copied to device page `to`
 *   WAIT  what is issued from now on runs after copy group `to` */
typedef enum KvOp {
	KV_PAGE,
	KV_FORK,
	KV_SNAPSHOT,
	KV_RESTORE,
	KV_SWAP_OUT,
	KV_SWAP_IN,
	KV_WAIT
} KvOp;

/* Pages in host memory: the layout of kv_bytes(1), at full length even where the window page is
 * missing */
typedef struct KvHost {
	int32_t n, n_free; /* n 0: no host memory */
	char *mem;
	size_t page_bytes;
	int32_t *free_page;     /* stack [n_free] */
	bool *whole;            /* [n] includes its window page */
	int32_t oldest, newest; /* LRU list of cached pages that are only in host memory */
	int32_t ahead;          /* pages that are available at once: free, or already copied */
	uint32_t *moved;        /* [n_page] last group that copied this device page */
	/* [n_window] the same for window pages, which may change owner before a copy has ended */
	uint32_t *near;
	uint32_t n_moved, waited; /* last group issued; last group waited for */
	uint64_t n_out, n_in;     /* pages copied */
} KvHost;

typedef struct Kv {
	const Plan *plan;
	KvMem mem;
	void (*told)(void *user, KvOp op, int32_t to,
	             int32_t from); /* called after each operation; NULL: not needed */
	void *on_op_user;
	int32_t n_page, n_free, max_page,
	    n_seq;      /* n_free includes cached pages; max_page is per sequence */
	int32_t stride; /* entries of a block table: max_page, twice that with windows */
	int32_t n_stack;
	int32_t *free_page; /* stack [n_stack] */
	int32_t *refs;      /* [n_page] */
	int32_t *drops;     /* [n_page] all 0 outside kv_pages_needed */
	bool *stale;        /* [n_page] has held positions of another sequence */
	KvSeq *seq;         /* [n_seq] */
	int32_t *tables;    /* memory of seq[].page */
	char **base;        /* [n_pool] pools, layers outermost */
	size_t *pool_bytes;
	/* window pages; NULL if no pool has a window */
	int32_t keep, n_window; /* positions that a window sees, the newest included */
	int32_t sinks;          /* first pages of each sequence that always need a window page */
	int32_t *window;        /* [n_page] window page of a page; -1: none */
	int32_t *needs;         /* [n_page] sequences that still need its window page */
	int32_t *owner;         /* [n_window] page that it belongs to; -1: free */
	uint64_t *since;        /* [n_window] when its page was last needed */
	bool *window_stale;     /* [n_window] same meaning as `stale` */
	uint64_t n_left;
	/* prefix cache */
	KvCachedPage *cached; /* [n_page]; NULL: off */
	int32_t *bucket;      /* [n_bucket] first page, or -1 */
	int32_t n_bucket;     /* power of two */
	int32_t oldest, newest;
	int64_t last_serial;
	KvSnapshot *snapshot; /* [n_snap] */
	int32_t n_snapshot;
	uint64_t n_used;
	char **snap_base; /* [n_pool] layers outermost, then snapshots */
	int32_t
	    n_mark; /* snapshots of marked sequences; in a KvOp they are numbered from n_snap on */
	bool *marked;     /* [n_mark] in use */
	char **mark_base; /* [n_pool] layout of snap_base */
	KvHost host;
} Kv;

/* Pages and bytes for limits; -1: overflow. */
int64_t kv_pages(int64_t kv_tokens, int64_t context, int64_t seqs, bool kv_tokens_given);
int64_t kv_bytes(const Plan *p, int64_t n_page);   /* pages of all pools, and as many exact pages */
int64_t kv_window_bytes(const Plan *p, int64_t n); /* window pages, exact ones included */
int64_t kv_exact_bytes(const Plan *p, int64_t n);  /* exact pages alone */
int64_t kv_windowless_bytes(
    const Plan *p,
    int32_t behind); /* window pages that a sequence with n_windowless = behind does not have */
/* Positions that windowed layers see or that are read from exact pages, the newest included; 0: no
 * window pages. The same in all ranks and stages, because the first stage numbers the pages for
 * all. */
int64_t kv_window_positions(const Plan *p);
/* Window pages for given limits: one window per sequence, half as many again for shared prefixes,
 * and the rows of a step. At most the number of pages; 0: no windows. */
int64_t kv_window_pages(const Plan *p, int64_t n_page, int64_t seqs, int64_t chunk);
int64_t kv_state_bytes(const Plan *p,
                       int64_t seqs); /* bytes of the pools that hold one state per sequence */

llmc_status kv_open(Kv *kv, const Plan *p, int32_t n_page, int32_t context, int32_t seqs,
                    llmc_error *err);
/* As kv_open, with pages in `mem` (NULL: host memory), n_window window pages and room for n_snap
 * snapshots of states. kv_open has as many window pages as pages, and no snapshots. */
llmc_status kv_open_on(Kv *kv, const KvMem *mem, const Plan *p, int32_t n_page, int32_t n_window,
                       int32_t n_snapshot, int32_t context, int32_t seqs, llmc_error *err);
void kv_release(Kv *kv);
int32_t kv_pool_pages(const Kv *kv, int pool); /* per layer */
/* First page, or the first sequence's state, of a layer of a pool. */
void *kv_layer(const Kv *kv, int pool, int layer_slot);

int32_t kv_seq_new(Kv *kv); /* -1: all in use */
int32_t kv_seq_fork(Kv *kv, int32_t from);
/* Does windowed attention find all its positions after a trim to len? Always true if the sequence
 * has never been longer than len + KV_MAX_ROLLBACK. */
bool kv_can_trim(const Kv *kv, int32_t q, int32_t len);
void kv_seq_trim(Kv *kv, int32_t q,
                 int32_t len); /* len <= its length; kv_can_trim must have returned true */
void kv_seq_free(Kv *kv, int32_t q);
/* Pages that appending add[i] positions to sequence q[i] will take; the q are distinct. */
int64_t kv_pages_needed(Kv *kv, const int32_t *q, const int32_t *add, size_t n);
/* Allocate pages for `add` more positions; kv_pages_needed has reported them available. The length
 * grows in kv_advance, when the step is done. */
void kv_extend(Kv *kv, int32_t q, int32_t add);
void kv_advance(Kv *kv, int32_t q, int32_t add); /* the step has run or is queued */

/* Pages that kv.host has space for */
int64_t kv_host_pages(const Plan *p);
/* Reserve n pages of host memory for the prefix cache; call it before kv_prefix_open. ahead: pages
 * that a step may take. Not for models with recurrent states. */
llmc_status kv_host_open(Kv *kv, int32_t n, int32_t ahead, llmc_error *err);
int32_t kv_host_used(const Kv *kv);
bool kv_seq_ready(Kv *kv,
                  /* have its pages arrived? A step with this sequence waits for them on the
                   * device. */
                  int32_t q);
void kv_seq_wait(Kv *kv, int32_t q); /* later operations run after its pages have arrived */

void kv_apply(Kv *kv, KvOp op, int32_t to, int32_t from); /* allocates nothing */
void kv_set_window_page(Kv *kv, int32_t page,
                        /* the page has this window page in the leading Kv; -1: none */
                        int32_t window);

/* Reserve n marks. A mark holds the recurrent states of a sequence as they are now, so that the
 * sequence can be trimmed to this length, until it is marked again, unmarked, freed, or trimmed
 * below. kv_mark returns false if all marks are in use. */
llmc_status kv_marks_open(Kv *kv, int32_t n, llmc_error *err);
bool kv_seq_mark(Kv *kv, int32_t q);
void kv_seq_unmark(Kv *kv, int32_t q);

/* Turn the prefix cache on. In models with recurrent states it finds only pages with a snapshot, so
 * nothing if no snapshots were reserved. */
llmc_status kv_prefix_open(Kv *kv, llmc_error *err);
/* Give an empty sequence the cached pages that match the beginning of tok. Returns the positions
 * found: whole pages, fewer than n_tok positions. root < 0: only pages recorded under the same root
 * match (it stands for whatever else the values depend on, for example an adapter). */
int32_t kv_prefix_find(Kv *kv, int32_t q, int64_t root, const int32_t *tok, int32_t n_tok);
/* Record the full pages of q in the cache. tok: the tokens of all its positions. */
void kv_prefix_keep(Kv *kv, int32_t q, int64_t root, const int32_t *tok);
/* Cached pages without a holder. */
int32_t kv_prefix_idle(const Kv *kv);

/* Pages of a sequence of len positions. kv_seq_reserve allocates the pages that the sequence lacks
 * (kv_pages_needed has reported them available); those of an empty sequence get no window page
 * before index `behind`. */
static inline int32_t
kv_seq_pages(int32_t len)
{
	return len / PLAN_KV_PAGE + (len % PLAN_KV_PAGE != 0);
}
void kv_seq_reserve(Kv *kv, int32_t q, int32_t len, int32_t behind);
/* First pages of a sequence of len positions that need no window page any more, except for its
 * sinks */
int32_t kv_windowless_pages(const Kv *kv, int32_t len);
bool kv_has_window(const Kv *kv,
                   /* can all of its positions be read? True without windows; from n_page on: was it
                    * copied to host memory with its window page? */
                   int32_t page);
/* Copy the pages of a sequence out or in, from its first on: kv_bytes(n) less
 * kv_windowless_bytes(behind), because some pages have no window page. */
void kv_pages_read(Kv *kv, const int32_t *page, int32_t n, int32_t behind, void *host);
void kv_pages_write(Kv *kv, const int32_t *page, int32_t n, int32_t behind, const void *host);
/* Copy one page out or in, wherever it is; lacks: without its window page */
void kv_page_read(Kv *kv, int32_t page, bool lacks, void *host);
void kv_page_write(Kv *kv, int32_t page, bool lacks, const void *host);
bool kv_lacks_window(const Kv *kv, int32_t i,
                     int32_t behind); /* does page i of a saved sequence have no window page? */
/* Copy the states of a sequence out or in: the kv_state_bytes of one sequence */
void kv_state_read(Kv *kv, int32_t q, void *host);
void kv_state_write(Kv *kv, int32_t q, const void *host);

/* Check the invariants: every page is either free, cached, or held exactly as often as its count.
 * Returns NULL, or what is wrong. */
const char *kv_check(const Kv *kv);

#endif
