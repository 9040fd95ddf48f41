/* KV pages and states of a session: who holds which. A state belongs to one sequence, by its
 * number; a fork copies it. A sequence's state is what its last position left; kernels take it for
 * zero in front of position 0, so none is cleared. All pools share one numbering of pages, so one
 * block table serves every layer. Pages are counted: a fork shares them, and a shared page is
 * copied before the first write to it.
 *
 * Layers that see a window (PlanPool.keep) have fewer pages, numbered apart: a page has a window
 * page while a sequence may still see it, and until it is wanted elsewhere (kv_window.c). Their
 * kernels take the second half of a sequence's table. Exact pages (PlanPool.recent, sinks) are
 * numbered as window pages too, in all layers that have them: a page has one while a sequence reads
 * it so, and the first ones of a sequence always. A layer's exact pages lie in front of its pages,
 * backwards.
 *
 * Prefix cache: a full page can be told its tokens (kv_prefix_keep). It is then found again by a
 * prompt that begins with the same tokens, also after its last holder is gone: such pages are
 * handed out anew only when no other is free, the least recently used first. A page is known by the
 * page before it and its own tokens, compared one by one, so no hash decides.
 *
 * Where layers keep a state, a prompt can only go on behind a page whose state was saved: a
 * snapshot, which is the page's. They are taken when a step ends at the end of a page. A sequence
 * has two that move with it, one while its steps have several rows (its prompt) and one while they
 * have one (its answer), so the last border of each stays; the least recently used makes room.
 * Where tokens are guessed a sequence is marked in front of them: a snapshot of its own, to which
 * it can be trimmed.
 *
 * Host memory (kv.host, kv_host.c): pages that the prefix cache would forget go there by copies
 * beside the steps, and come back when they are found. A sequence that was preempted finds its own
 * so. */
#ifndef LLMC_RUNTIME_KV_H
#define LLMC_RUNTIME_KV_H

#include "plan/plan.h"

/* Where pages live. Addresses are only ever handed back to these functions and to kernels. Calls
 * take effect in the order of the session's steps; what fails in one that returns nothing must make
 * the next step fail. */
typedef struct KvMem {
	void *user;
	llmc_status (*alloc)(void *user, size_t bytes, void **out, llmc_error *err); /* zeroed */
	void (*free)(void *user, void *mem, size_t bytes);
	void (*copy)(void *user, void *to, const void *from, size_t bytes);
	void (*clear)(void *user, void *at, size_t bytes, size_t apart,
	              int n); /* n pieces of so many bytes, from start to start `apart` bytes */
	void (*read)(void *user, void *host, const void *at,
	             size_t bytes); /* returns when host is filled */
	void (*write)(void *user, void *at, const void *host,
	              size_t bytes); /* host may be reused on return */
	/* Copies beside steps, from and to host memory that stays where it is. They run in order,
	 * in numbered groups: begin, copies, end. A group comes behind all steps and calls above
	 * that were made before its begin; what is made after wait(number) comes behind that group
	 * and those before it. over: it has ended. */
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
}; /* positions by which a sequence can always be trimmed: guesses are fewer */

typedef struct KvSeq {
	bool used;
	int32_t len, n_page;
	int32_t
	    n_windowless; /* first pages, which need no window page any more, also KV_MAX_ROLLBACK
	                     positions before the end, but for Kv.sinks of them */
	int32_t *page;    /* [stride]: pages, and from max_page on their window pages, of those that
	                     need one */
	int32_t n_kept;   /* pages that the prefix cache has been told of */
	int64_t prefix_parent;  /* serial of the last of them */
	int32_t prefix_len;     /* positions when it was told last */
	int32_t mark, mark_len; /* number of the mark that has its states of so many positions, from
	                           1 on; 0: none */
	uint32_t coming;        /* group of copies behind which its pages are there */
} KvSeq;

/* A page of the prefix cache; those in host memory are numbered from n_page on */
typedef struct KvCachedPage {
	int64_t serial; /* 0: not in the cache */
	int64_t parent; /* serial of the page before; of a first page: the root, negative */
	int32_t next;   /* in its bucket; -1: none */
	int32_t older,
	    newer;        /* in the list of those without a holder, or of those in host memory */
	int32_t snapshot; /* number of its snapshot, from 1 on; 0: none */
	int32_t copy; /* of a page without a holder: its number in host memory, from 1 on, where it
	                 is as well; 0: not there */
	int32_t tok[PLAN_KV_PAGE];
} KvCachedPage;

/* The states behind a page */
typedef struct KvSnapshot {
	int32_t page; /* -1: free */
	int32_t seq;  /* whose moving snapshot it is; -1: nobody's any more */
	bool prompt;  /* of its prompt, or of its answer */
	uint64_t used;
} KvSnapshot;

/* What happens to memory of pages and states beside steps. Memory elsewhere that follows the books
 * of this Kv does the same (kv_apply). PAGE: page `to`, in every layer of every pool, becomes as
 * page `from`; -1: zero. FORK: the states of sequence `to` become those of sequence `from`. TAKE:
 * the states of sequence `from` become snapshot `to`. GIVE: those of sequence `to` become as
 * snapshot `from`. OUT: page `from` is copied to page `to` of host memory. IN: the other way. WAIT:
 * what is done from now on comes behind the group of copies `to`. */
typedef enum KvOp {
	KV_PAGE,
	KV_FORK,
	KV_SNAPSHOT,
	KV_RESTORE,
	KV_SWAP_OUT,
	KV_SWAP_IN,
	KV_WAIT
} KvOp;

/* Pages in host memory: a page of the device as kv_bytes(1) has it, at its whole length also where
 * it lacks its window page */
typedef struct KvHost {
	int32_t n, n_free; /* n 0: there are none */
	char *mem;
	size_t page_bytes;
	int32_t *free_page;     /* stack [n_free] */
	bool *whole;            /* [n] with its window page */
	int32_t oldest, newest; /* of the cached ones that are nowhere else */
	int32_t ahead;          /* pages that can be taken at once: free, or copied already */
	uint32_t *moved;        /* [n_page] group that has copied the page of the device last */
	uint32_t *near; /* [n_window] the same of window pages, which pages hand on before a copy
	                   has ended */
	uint32_t n_moved, waited; /* last group; last one that was waited for */
	uint64_t n_out, n_in;     /* pages copied */
} KvHost;

typedef struct Kv {
	const Plan *plan;
	KvMem mem;
	void (*told)(void *user, KvOp op, int32_t to,
	             int32_t from); /* it has just been done; NULL: nobody asks */
	void *on_op_user;
	int32_t n_page, n_free, max_page,
	    n_seq;      /* n_free: with the cached ones; max_page: of one sequence */
	int32_t stride; /* of tables: max_page, twice of it where there are windows */
	int32_t n_stack;
	int32_t *free_page; /* stack [n_stack] */
	int32_t *refs;      /* [n_page] */
	int32_t *drops;     /* [n_page] zeros outside kv_pages_needed */
	bool *stale;        /* [n_page] has held positions of somebody else */
	KvSeq *seq;         /* [n_seq] */
	int32_t *tables;    /* memory of seq[].page */
	char **base;        /* [n_pool] pools, layers outermost */
	size_t *pool_bytes;
	/* window pages; NULL where no pool has a window */
	int32_t keep, n_window; /* positions that are seen behind the newest, itself included */
	int32_t sinks;      /* first pages of each sequence, whose window pages are needed always */
	int32_t *window;    /* [n_page] window page of a page; -1: none */
	int32_t *needs;     /* [n_page] sequences that it is not behind of */
	int32_t *owner;     /* [n_window] page that has it; -1: free */
	uint64_t *since;    /* [n_window] when its page was needed last */
	bool *window_stale; /* [n_window] as stale */
	uint64_t n_left;
	/* prefix cache */
	KvCachedPage *cached; /* [n_page]; NULL: never used */
	int32_t *bucket;      /* [n_bucket] first page, or -1 */
	int32_t n_bucket;     /* power of two */
	int32_t oldest, newest;
	int64_t last_serial;
	KvSnapshot *snapshot; /* [n_snap] */
	int32_t n_snapshot;
	uint64_t n_used;
	char **snap_base; /* [n_pool] layers outermost, then snapshots */
	int32_t
	    n_mark;   /* snapshots of marked sequences; in deeds they are numbered from n_snap on */
	bool *marked; /* [n_mark] taken */
	char **mark_base; /* [n_pool] as snap_base */
	KvHost host;
} Kv;

/* Pages and bytes for limits; -1: overflow. */
int64_t kv_pages(int64_t kv_tokens, int64_t context, int64_t seqs, bool kv_tokens_given);
int64_t kv_bytes(const Plan *p,
                 int64_t n_page); /* of pages of all pools, and as many exact pages */
int64_t kv_window_bytes(const Plan *p, int64_t n); /* of window pages, exact ones included, */
int64_t kv_exact_bytes(const Plan *p, int64_t n);  /* and of these alone */
int64_t kv_windowless_bytes(
    const Plan *p,
    int32_t behind); /* of the window pages that a sequence lacks whose n_windowless is that */
/* Positions that layers with a window see, or that are read from exact pages, the newest included;
 * 0: no window pages. The same for all ranks and stages: the first one numbers the pages for them.
 */
int64_t kv_window_positions(const Plan *p);
/* Window pages for limits: a window for each sequence, half as many that prompts that begin alike
 * may find again, and the rows of a step. Never more than pages; 0: no windows. */
int64_t kv_window_pages(const Plan *p, int64_t n_page, int64_t seqs, int64_t chunk);
int64_t kv_state_bytes(const Plan *p,
                       int64_t seqs); /* of the pools that hold a state for each sequence */

llmc_status kv_open(Kv *kv, const Plan *p, int32_t n_page, int32_t context, int32_t seqs,
                    llmc_error *err);
/* The same with pages elsewhere than in host memory (mem NULL: there), n_window of them for
 * windows, and room for n_snap snapshots of states; kv_open has as many for windows as pages, and
 * no snapshots. */
llmc_status kv_open_on(Kv *kv, const KvMem *mem, const Plan *p, int32_t n_page, int32_t n_window,
                       int32_t n_snapshot, int32_t context, int32_t seqs, llmc_error *err);
void kv_release(Kv *kv);
int32_t kv_pool_pages(const Kv *kv, int pool); /* of each layer */
/* First page, or first sequence's state, of a layer of a pool. */
void *kv_layer(const Kv *kv, int pool, int layer_slot);

int32_t kv_seq_new(Kv *kv); /* -1: all taken */
int32_t kv_seq_fork(Kv *kv, int32_t from);
/* Are the positions there that windowed layers see behind len? Always where the sequence has never
 * been longer than len + KV_MAX_ROLLBACK. */
bool kv_can_trim(const Kv *kv, int32_t q, int32_t len);
void kv_seq_trim(Kv *kv, int32_t q,
                 int32_t len); /* len <= its length, which kv_can_trim has found */
void kv_seq_free(Kv *kv, int32_t q);
/* Pages that appending add[i] positions to q[i], different sequences, will take. */
int64_t kv_pages_needed(Kv *kv, const int32_t *q, const int32_t *add, size_t n);
/* Make room for `add` more positions, which kv_pages_needed has found; the length grows when the
 * step is done. */
void kv_extend(Kv *kv, int32_t q, int32_t add);
void kv_advance(Kv *kv, int32_t q, int32_t add); /* it is, or on its way */

/* Pages that kv.host has room for */
int64_t kv_host_pages(const Plan *p);
/* Room for n pages in host memory, for the prefix cache, before that is opened. ahead: pages that a
 * step may take. Models that keep states have none. */
llmc_status kv_host_open(Kv *kv, int32_t n, int32_t ahead, llmc_error *err);
int32_t kv_host_used(const Kv *kv);
bool kv_seq_ready(Kv *kv,
                  int32_t q); /* have its pages come? A step with it waits for them on the device */
void kv_seq_wait(Kv *kv, int32_t q); /* what is done from now on comes behind them */

void kv_apply(Kv *kv, KvOp op, int32_t to, int32_t from); /* takes no memory */
void kv_set_window_page(Kv *kv, int32_t page,
                        int32_t window); /* elsewhere the page has this window page; -1: none */

/* Room for n marks. States of a marked sequence stay as they are now beside those that go on, until
 * it is marked anew or not any more, freed, or trimmed below: it can be trimmed to here. False: all
 * marks are taken. */
llmc_status kv_marks_open(Kv *kv, int32_t n, llmc_error *err);
bool kv_seq_mark(Kv *kv, int32_t q);
void kv_seq_unmark(Kv *kv, int32_t q);

/* Switch the prefix cache on. Where there are states it finds what snapshots were taken of: nothing
 * without room for them. */
llmc_status kv_prefix_open(Kv *kv, llmc_error *err);
/* Give an empty sequence the cached pages that hold the beginning of tok; the positions found,
 * whole pages, less than n_tok. root < 0: only pages kept under the same root are found (what else
 * decides about the values of a position). */
int32_t kv_prefix_find(Kv *kv, int32_t q, int64_t root, const int32_t *tok, int32_t n_tok);
/* tok: the tokens of all positions of q. Its full pages may be found from now on. */
void kv_prefix_keep(Kv *kv, int32_t q, int64_t root, const int32_t *tok);
/* Pages without a holder that the cache holds. */
int32_t kv_prefix_idle(const Kv *kv);

/* Pages of a sequence of len positions. One takes as many as it lacks, which kv_pages_needed has
 * found; an empty one the first `behind` of them without window pages. */
static inline int32_t
kv_seq_pages(int32_t len)
{
	return len / PLAN_KV_PAGE + (len % PLAN_KV_PAGE != 0);
}
void kv_seq_reserve(Kv *kv, int32_t q, int32_t len, int32_t behind);
/* First pages of a sequence of len positions that need no window page from there on, but for its
 * sinks. */
int32_t kv_windowless_pages(const Kv *kv, int32_t len);
bool kv_has_window(const Kv *kv,
                   int32_t page); /* may all of it be read? True where there are no windows; from
                                     n_page on: was it copied so to host memory? */
/* Pages of a sequence, from its first on, out and in again: kv_bytes(n) of them less
 * kv_windowless_bytes(behind), for those that lack their window pages. */
void kv_pages_read(Kv *kv, const int32_t *page, int32_t n, int32_t behind, void *host);
void kv_pages_write(Kv *kv, const int32_t *page, int32_t n, int32_t behind, const void *host);
/* One page, wherever it stands; lacks: without its window page */
void kv_page_read(Kv *kv, int32_t page, bool lacks, void *host);
void kv_page_write(Kv *kv, int32_t page, bool lacks, const void *host);
bool kv_lacks_window(const Kv *kv, int32_t i,
                     int32_t behind); /* page i of a sequence its window page? */
/* The states of a sequence, kv_state_bytes of one; out and in again */
void kv_state_read(Kv *kv, int32_t q, void *host);
void kv_state_write(Kv *kv, int32_t q, const void *host);

/* The invariants: every page is held as often as its count says, or free, or cached, once. NULL, or
 * what is wrong. */
const char *kv_check(const Kv *kv);

#endif
