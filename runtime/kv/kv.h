/* KV pages and recurrent states of a session, with their ownership. A recurrent state belongs to
 * one sequence slot; a fork copies it. It holds the result of the sequence's last position. Kernels
 * treat the state before position 0 as zero, so states need no clearing. All pools share one
 * numbering of pages, so one block table serves every layer. Pages are reference counted: a fork
 * shares them, and a shared page is copied before the first write to it.
 *
 * Sliding-window layers (PlanPool.keep) have fewer pages, with a numbering of their own
 * (kv_window.c). A page owns a window page while a sequence may still attend to the page. After
 * that it keeps the window page until another page needs one. Kernels of these layers read the
 * second half of a sequence's block table. Exact pages (PlanPool.recent, sinks) use the numbering
 * of window pages too, in all layers that have them. A page has an exact page while it holds recent
 * positions of a sequence; the first pages of a sequence always have one. In memory, the exact
 * pages of a layer precede its pages in reverse order.
 *
 * Prefix cache: kv_prefix_keep registers the tokens of a full page. A prompt with the same prefix
 * then finds the page, even after the last sequence has released it. Such pages are evicted in LRU
 * order, and only when no page is free. A page is identified by the page before it and its own
 * tokens. Tokens are compared one by one; a hash match alone is never enough.
 *
 * Models with recurrent states can resume a prefix only at the end of a page for which the states
 * were saved. The saved copy is called a snapshot and belongs to the page. Snapshots are taken when
 * a step ends at a page boundary. A sequence has two rolling snapshots: one for steps with several
 * rows (its prompt), one for single-row steps (its output). So both the prompt and the output stay
 * resumable at their last page boundary. When no snapshot is free, the least recently used one is
 * replaced. With speculative decoding, a sequence is marked before draft tokens: a mark is a
 * private snapshot to which the sequence can be trimmed.
 *
 * Host memory (kv.host, kv_host.c): pages that the prefix cache would evict are copied to host
 * memory while steps run, and copied back when a prompt finds them. A preempted sequence gets its
 * own pages back in the same way. */
#ifndef LLMC_RUNTIME_KV_H
#define LLMC_RUNTIME_KV_H

#include "plan/plan.h"

/* Memory that holds the pages. Functions on the memory that holds the pages. Its addresses are
 * passed only to these functions and to kernels. Calls take effect in the order of the session's
 * steps. If a call without a return value fails, the next step must fail. */
typedef struct KvMem {
	void *user;
	llmc_status (*alloc)(void *user, size_t bytes, void **out, llmc_error *err); /* zeroed */
	void (*free)(void *user, void *mem, size_t bytes);
	void (*copy)(void *user, void *to, const void *from, size_t bytes);
	void (*clear)(void *user, void *at, size_t bytes, size_t stride,
	              int n); /* n spans of `bytes` bytes, `stride` bytes from start to start */
	void (*read)(void *user, void *host, const void *at,
	             size_t bytes); /* returns after host is filled */
	void (*write)(void *user, void *at, const void *host,
	              size_t bytes); /* host may be reused after the return */
	/* Copies to and from pinned host memory that overlap with steps. Copies run in order, in
	 * numbered groups: begin, copies, end(number). A group starts after all steps and calls
	 * that were issued before its begin. Work issued after wait(number) starts after that group
	 * and all earlier groups. over(number) returns whether the group has completed. */
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
	/* number of positions by which a sequence can always be trimmed; above the number of draft
	 * tokens of a step */
	KV_MAX_ROLLBACK = 32
};

typedef struct KvSeq {
	bool used;
	int32_t len, n_page;
	/* number of leading pages, not counting Kv.sinks, that need no window page any more,
	 * even after a trim by KV_MAX_ROLLBACK */
	int32_t n_windowless;
	int32_t *page;  /* [stride] block table: pages, then from max_page on their window pages */
	int32_t n_kept; /* pages registered with the prefix cache */
	int64_t prefix_parent; /* serial of the last registered page */
	int32_t prefix_len;    /* length at the last kv_prefix_keep */
	/* number of the mark (from 1) that holds the recurrent states at length mark_len; 0:
	 * none */
	int32_t mark, mark_len;
	uint32_t coming; /* copy group after which its pages are complete */
} KvSeq;

/* Record of a page in the prefix cache; pages in host memory have indices from n_page on */
typedef struct KvCachedPage {
	int64_t serial; /* 0: not in the cache */
	/* serial of the page before; for a first page the root, which is negative */
	int64_t parent;
	int32_t next; /* next in its hash bucket; -1: none */
	int32_t older,
	    /* neighbours in the LRU list of unreferenced pages, or of pages in host memory */
	    newer;
	int32_t snapshot; /* index of its snapshot, counted from 1; 0: none */
	/* for an unreferenced page: index of its copy in host memory, counted from 1; 0: no copy */
	int32_t copy;
	int32_t tok[PLAN_KV_PAGE];
} KvCachedPage;

/* Copy of the recurrent states at the end of a page */
typedef struct KvSnapshot {
	int32_t page; /* -1: free */
	int32_t seq;  /* sequence that owns this rolling snapshot; -1: none */
	bool prompt;  /* belongs to the sequence's prompt; false: to its output */
	uint64_t used;
} KvSnapshot;

/* Operations on the memory of pages and recurrent states between steps. Ranks that mirror this Kv
 * repeat them with kv_apply.
 *   PAGE       copy page `from` to page `to` in every layer of every pool; from -1: zero it
 *   FORK       copy the states of sequence `from` to sequence `to`
 *   SNAPSHOT   copy the states of sequence `from` to snapshot `to`
 *   RESTORE    copy snapshot `from` to the states of sequence `to`
 *   SWAP_OUT   copy page `from` to host page `to`
 *   SWAP_IN    copy host page `from` to page `to`
 *   WAIT       later operations and steps start after copy group `to` */
typedef enum KvOp {
	KV_PAGE,
	KV_FORK,
	KV_SNAPSHOT,
	KV_RESTORE,
	KV_SWAP_OUT,
	KV_SWAP_IN,
	KV_WAIT
} KvOp;

/* Pages in host memory. A host page has the layout of kv_bytes(1), at full length even without the
 * window page. */
typedef struct KvHost {
	int32_t n, n_free; /* n 0: no host memory */
	char *mem;
	size_t page_bytes;
	int32_t *free_page;     /* stack [n_free] */
	bool *whole;            /* [n] the host page includes a window page */
	int32_t oldest, newest; /* LRU list of cached pages that are in host memory only */
	/* number of pages that should be free or already copied, so that a step can allocate them
	 * without waiting for a copy */
	int32_t ahead;
	uint32_t *moved; /* [n_page] last copy group that touched the device page */
	/* [n_window] last copy group that touched the window page, whose owner may change before a
	 * copy has completed */
	uint32_t *near;
	uint32_t n_moved, waited; /* last group issued; last group waited for */
	uint64_t n_out, n_in;     /* pages copied */
} KvHost;

typedef struct Kv {
	const Plan *plan;
	KvMem mem;
	void (*on_op)(void *user, KvOp op, int32_t to,
	              int32_t from); /* called after each operation; may be NULL */
	void *on_op_user;
	int32_t n_page, n_free, max_page,
	    n_seq;      /* n_free includes unreferenced cached pages; max_page is per sequence */
	int32_t stride; /* entries per block table: max_page, or twice that with window pages */
	int32_t n_stack;
	int32_t *free_page; /* stack [n_stack] */
	int32_t *refs;      /* [n_page] */
	int32_t *drops;     /* [n_page] scratch of kv_pages_needed, all zero at other times */
	bool *stale;        /* [n_page] the page may hold values of an earlier owner */
	KvSeq *seq;
	int32_t *tables; /* storage of seq[].page */
	char **base;     /* [n_pool] pool memory, layer-major */
	size_t *pool_bytes;
	/* window pages; NULL if no pool has a window */
	int32_t keep, n_window; /* window size in positions, including the newest */
	int32_t sinks;      /* first pages of each sequence that always need their window pages */
	int32_t *window;    /* [n_page] window page of a page; -1: none */
	int32_t *needs;     /* [n_page] number of sequences that still need its window page */
	int32_t *owner;     /* [n_window] page that owns it; -1: free */
	uint64_t *since;    /* [n_window] when its page was last needed */
	bool *window_stale; /* [n_window] like stale */
	uint64_t n_left;
	/* prefix cache */
	KvCachedPage *cached; /* [n_page]; NULL: never used */
	int32_t *bucket;      /* [n_bucket] first page of the chain, or -1 */
	int32_t n_bucket;     /* power of two */
	int32_t oldest, newest;
	int64_t last_serial;
	KvSnapshot *snapshot; /* [n_snap] */
	int32_t n_snapshot;
	uint64_t n_used;
	char **snap_base; /* [n_pool] layer-major, then snapshots */
	/* number of snapshots for marks, which follow the others in the numbering of KvOp */
	int32_t n_mark;
	bool *marked;     /* [n_mark] in use */
	char **mark_base; /* [n_pool] laid out like snap_base */
	KvHost host;
} Kv;

/* Pages and bytes for given limits; -1 on overflow. */
int64_t kv_pages(int64_t kv_tokens, int64_t context, int64_t seqs, bool kv_tokens_given);
/* n_page pages of all pools, and n_page exact pages */
int64_t kv_bytes(const Plan *p, int64_t n_page);
int64_t kv_window_bytes(const Plan *p, int64_t n); /* window pages, including exact pages */
int64_t kv_exact_bytes(const Plan *p, int64_t n);  /* exact pages alone */
/* window pages that a sequence with this n_windowless lacks */
int64_t kv_windowless_bytes(const Plan *p, int32_t windowless);
/* Positions that sliding-window layers see or that are read from exact pages, including the newest;
 * 0: no window pages. The value is equal on all ranks and stages, because the first rank assigns
 * page numbers for all of them. */
int64_t kv_window_positions(const Plan *p);
/* Window pages for given limits: one window per sequence, half as many again for shared prefixes in
 * the prefix cache, and the rows of a step. At most n_page; 0: no windows. */
int64_t kv_window_pages(const Plan *p, int64_t n_page, int64_t seqs, int64_t chunk);
int64_t kv_state_bytes(const Plan *p, int64_t seqs); /* recurrent states of `seqs` sequences */

llmc_status kv_open(Kv *kv, const Plan *p, int32_t n_page, int32_t context, int32_t seqs,
                    llmc_error *err);
/* Like kv_open, but in memory of `mem` (NULL: host memory), with n_window window pages and
 * n_snapshot snapshots. kv_open allocates one window page per page, and no snapshots. */
llmc_status kv_open_on(Kv *kv, const KvMem *mem, const Plan *p, int32_t n_page, int32_t n_window,
                       int32_t n_snapshot, int32_t context, int32_t seqs, llmc_error *err);
void kv_release(Kv *kv);
int32_t kv_pool_pages(const Kv *kv, int pool); /* per layer */
/* Number of positions to reserve for a sequence of this context. With windows (PlanPool.segment) it
 * is a multiple of the context, because each window begins in a page of its own. The narrowest
 * window is one column of an image that is one merged cell wide. It has 4 cells, which fill 16 of
 * the 32 positions of a page: factor 2. Longer windows fill more than half of their pages. The
 * factor is 1 higher for the smaller windows at the edges of an image. session_check_windows
 * rejects windows of a caller that need more. */
int64_t kv_context(const Plan *p, int64_t context);
/* Return the first page of a layer of a pool, or the first sequence's recurrent state. */
void *kv_layer(const Kv *kv, int pool, int layer_slot);

int32_t kv_seq_new(Kv *kv); /* -1: no free slot */
int32_t kv_seq_fork(Kv *kv, int32_t from);
/* Can the sequence be trimmed to len, that is, are all positions present that windowed layers need
 * there? Always true if the sequence was never longer than len + KV_MAX_ROLLBACK. */
bool kv_can_trim(const Kv *kv, int32_t q, int32_t len);
/* len <= current length; check kv_can_trim first */
void kv_seq_trim(Kv *kv, int32_t q, int32_t len);
void kv_seq_free(Kv *kv, int32_t q);
/* Number of pages that appending add[i] positions to each sequence q[i] allocates. The sequences
 * must be distinct. */
int64_t kv_pages_needed(Kv *kv, const int32_t *q, const int32_t *add, size_t n);
/* Allocate pages for `add` more positions; kv_pages_needed must have shown that they fit.
 * kv_advance raises the length once the step is issued. */
void kv_extend(Kv *kv, int32_t q, int32_t add);
void kv_advance(Kv *kv, int32_t q, int32_t add); /* the step has run or is in flight */

/* Number of pages that fit into the plan's kv.host bytes */
int64_t kv_host_pages(const Plan *p);
/* Allocate n pages of host memory for the prefix cache, before kv_prefix_open. ahead: pages that
 * one step may allocate. Models with recurrent states do not use host memory. */
llmc_status kv_host_open(Kv *kv, int32_t n, int32_t ahead, llmc_error *err);
int32_t kv_host_used(const Kv *kv);
/* are the sequence's pages copied back? If not, a step with it would wait on the device */
bool kv_seq_ready(Kv *kv, int32_t q);
void kv_seq_wait(Kv *kv, int32_t q); /* make all later work wait for the sequence's pages */

void kv_apply(Kv *kv, KvOp op, int32_t to, int32_t from); /* allocates no memory */
/* set the window page of a page, for a Kv that follows the numbering of another one; -1: none */
void kv_set_window_page(Kv *kv, int32_t page, int32_t window);

/* Allocate n marks. kv_seq_mark saves the states of a sequence at its current length, so that it
 * can be trimmed back to that length. The mark lasts until the next kv_seq_mark, kv_seq_unmark or
 * kv_seq_free, or a trim below it. kv_seq_mark returns false if all marks are in use. */
llmc_status kv_marks_open(Kv *kv, int32_t n, llmc_error *err);
bool kv_seq_mark(Kv *kv, int32_t q);
void kv_seq_unmark(Kv *kv, int32_t q);

/* Enable the prefix cache. Models with recurrent states reuse only prefixes that have snapshots. */
llmc_status kv_prefix_open(Kv *kv, llmc_error *err);
/* Give an empty sequence the cached pages that match the start of tok. Returns the number of
 * positions found: whole pages, fewer than n_tok. root, below 0: id of everything besides the
 * tokens that KV values depend on; only pages registered under the same root are found. */
int32_t kv_prefix_find(Kv *kv, int32_t q, int64_t root, const int32_t *tok, int32_t n_tok);
/* Register the full pages of q with the prefix cache. tok holds the tokens of all positions of
 * q. */
void kv_prefix_keep(Kv *kv, int32_t q, int64_t root, const int32_t *tok);
/* Number of unreferenced pages in the prefix cache. */
int32_t kv_prefix_idle(const Kv *kv);

/* Return the number of pages of a sequence of len positions. kv_seq_reserve allocates the missing
 * ones; kv_pages_needed must have shown that they fit. If the sequence is empty, its first
 * `windowless` pages get no window pages. */
static inline int32_t
kv_seq_pages(int32_t len)
{
	return len / PLAN_KV_PAGE + (len % PLAN_KV_PAGE != 0);
}
void kv_seq_reserve(Kv *kv, int32_t q, int32_t len, int32_t windowless);
/* Return the number of leading pages, not counting the sinks, that need no window page at length
 * len or later. */
int32_t kv_windowless_pages(const Kv *kv, int32_t len);
/* does the page have a window page? True without windows. A number from n_page on is a page in
 * host memory: was its window page copied too? */
bool kv_has_window(const Kv *kv, int32_t page);
/* Copy the first n pages of a sequence to or from host memory: kv_bytes(n) bytes, minus
 * kv_windowless_bytes(windowless) for pages without window pages. */
void kv_pages_read(Kv *kv, const int32_t *page, int32_t n, int32_t windowless, void *host);
void kv_pages_write(Kv *kv, const int32_t *page, int32_t n, int32_t windowless, const void *host);
/* Copy one page to or from host memory; lacks: without its window page */
void kv_page_read(Kv *kv, int32_t page, bool lacks, void *host);
void kv_page_write(Kv *kv, int32_t page, bool lacks, const void *host);
/* does page i of a sequence have no window page? */
bool kv_lacks_window(const Kv *kv, int32_t i, int32_t windowless);
/* Copy the recurrent states of a sequence (kv_state_bytes(p, 1)) to or from host memory */
void kv_state_read(Kv *kv, int32_t q, void *host);
void kv_state_write(Kv *kv, int32_t q, const void *host);

/* Check the invariants: each page is referenced as often as its count, or free, or cached, exactly
 * once. Returns NULL, or a description of the violation. */
const char *kv_check(const Kv *kv);

#endif
