/* Internal interface of the emulator. The engine (fibers, blocks, collectives), the checker (shadow
 * cells, clocks) and the driver share it. One lock, which every driver call takes, protects all
 * state. Kernels run on the calling thread as fibers. */
#ifndef EMU_CORE_EMU_H
#define EMU_CORE_EMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../device/emu_abi.h"

#define EXPORT __attribute__((visibility("default")))
#define NORETURN __attribute__((noreturn))
#define COLD __attribute__((cold, noinline))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

typedef struct {
	unsigned x, y, z;
} Dim;
typedef struct Thread Thread;
typedef struct EmuBlock EmuBlock;
typedef struct EmuOp EmuOp;
typedef struct Func Func;
typedef struct Region Region;

/* Source position of a call to a wrapper in a kernel */
typedef struct {
	const char *file;
	int line;
} Site;

/* ---- vector_clock.c: happens-before order of writes ---- */
typedef struct VC {
	int ref, n;
	uint32_t c[];
} VC; /* latest known clock of each thread of one block */
typedef struct KnownClocks {
	int ref, n;
	struct {
		uint32_t buid;
		VC *vc;
	} e[];
} KnownClocks; /* latest known clocks of other blocks, sorted by buid */

typedef enum {
	T_READY,
	T_RUN,
	T_BARRIER,
	T_WARP,
	T_NAMED,
	T_GRID,
	T_CLUSTER,
	T_GRIDDEP,
	T_WGMMA,
	T_YIELD,
	T_DONE
} ThreadState;

typedef struct CpCopy {
	void *dst;
	const void *src;
	unsigned n, src_n;
	Site at;
	char was[16];
} CpCopy;
typedef struct CpArrival {
	uint32_t upto;
	void *bar;
} CpArrival; /* arrival that takes place once the first `upto` copies have completed */
/* Queue of cp.async copies, numbered from the start of the thread. Copies from number `landed` on
 * are in a ring of `cap` entries (a power of two). */
typedef struct CpQueue {
	CpCopy *copy;
	uint32_t *group;
	CpArrival *arr;
	uint32_t issued, landed, cap;
	int n_group, n_arr;
	short cap_group, cap_arr;
} CpQueue;

/* Queue of bulk copies out of shared memory. The source is read when the thread waits for reads of
 * the group. The target is written when the thread waits for the whole group, or when it exits. */
typedef struct StoreQueue {
	struct TmaStore *s;
	int n, cap;
} StoreQueue;

/* Registers in use by matrix instructions in flight. Accumulators are in use until all instructions
 * have finished, inputs until `upto` instructions have. */
typedef struct EmuHeld {
	const char *lo, *hi;
	bool whole;
	uint32_t upto;
} EmuHeld;
/* Warpgroup matrix instructions that a thread has issued, numbered from the start of the kernel */
typedef struct WgThread {
	uint32_t next, end[16];
	int n_group;
	bool fenced;
	EmuHeld busy[24];
	int n_busy;
} WgThread;

/* A thread's last proxy fences, one for shared and one for global memory. Each holds the thread's
 * clock and the clocks known at the fence, of its block and of others. */
typedef struct ProxyFences {
	uint32_t clk[2];
	VC *vc[2];
	KnownClocks *kn[2];
} ProxyFences;

/* A fiber. The device header reads the first fields by inline assembly. Fields are grouped into
 * cache lines of 64 bytes: those used by every collective, by the checking mode, by few kernels. */
struct Thread {
	uint32_t tid[3], bid[3], bdim[3], gdim[3], lane, lin, warp, cluster_rank;
	void *sp;
	EmuBlock *blk;
	struct Warp *w;
	uint64_t *io; /* operands and results of other warp collectives, on the thread's stack */
	Site at;      /* source position of the collective that the thread waits in */
	ThreadState state;
	uint32_t clk;
	char *stack;
	/* checking mode */
	VC *vc;
	KnownClocks *kn, *fence, *pending;
	WgThread *wg; /* NULL until the first instruction */
	uint64_t arg;
	ProxyFences *proxy; /* NULL: no fence yet */
	int nreg;
	bool gdc_waited, in_cluster, fence_cta;
	/* the fields below are reused by later blocks */
	CpQueue cp;
	StoreQueue bulk;
} __attribute__((aligned(64)));

/* Operands of a warp's lanes for a matrix instruction; the result replaces c. */
typedef struct Fragments {
	emu_words a[32];
	emu_u64 b[32];
	emu_four c[32];
} __attribute__((aligned(64))) Fragments;

typedef struct {
	uint32_t mask, arrived;
	int op;
	Site at;
} Rendezvous; /* lanes that have arrived at one warp collective */
typedef struct Warp {
	uint32_t ready, alive;
	/* rank_bit: bit of any_ready for this warp's rank in the order of warps; before: bits of
	 * the warps that precede it */
	uint32_t rank_bit, before;
	int down, n_rendezvous; /* down: lanes run from the last to the first */
	struct Fragments *frag;
	Rendezvous rendezvous[8];
} __attribute__((aligned(64))) Warp;
typedef struct {
	int want, arrived;
	uint32_t waiting[32];
	KnownClocks *known;
	Site at;
} NamedBar;

struct EmuBlock {
	EmuOp *op;
	uint32_t index, buid;
	int nt, nw, live, arrived;
	Site bar_at,
	    zero_at; /* last __syncthreads; last use of barrier 0 by only part of the block */
	Thread *t;
	uint32_t any_ready;  /* bit per warp, by rank */
	uint8_t warp_at[32]; /* warp of each rank */
	Region *arena;
	uint32_t span_lo, span_n; /* arena object of the last access */
	struct Cluster *cluster;
	unsigned cluster_rank;
	int n_obj; /* number of static objects seen so far */
	bool triggered, counted;
	int n_trigger;
	struct Mbar *mbar;
	int n_mbar;
	/* Checking mode, by rank in the cluster: for each thread of that block, its clock at the
	 * last time it arrived at an mbarrier of this block or accessed this block's shared
	 * memory */
	uint32_t *far_clk[16];
	Site far_at; /* last of these accesses, and its source position */
	const void *far_pc;
	NamedBar named[16];
	uint32_t bar_epoch;
	uint32_t async_clk, store_clk;
	/* operations that this block's threads know of through relaxed atomics, until a fence;
	 * NULL: none */
	struct OpSet *acquired;
	struct Wg *wg;
	Warp warp[32]; /* last field: only nw are allocated */
};

/* Entries of a block's vector clocks. The threads come first. Then follow the asynchronous writes,
 * the reads by each warpgroup's matrix instructions, and the reads by bulk stores. */
#define CLOCK_ASYNC(b) ((b)->nt)
#define CLOCK_WG(b, i) ((b)->nt + 1 + (i))
#define CLOCK_STORE(b) ((b)->nt + 1 + (b)->nt / 128)
#define CLOCK_N(b) ((b)->nt + 2 + (b)->nt / 128)

typedef struct Cluster {
	int n, arrived, live_blocks;
	EmuBlock *b[16];
} Cluster;

/* A shared object of a kernel. Its offset is equal in all blocks, so that a cluster can map the
 * address of one block to another. */
typedef struct {
	const void *site;
	const char *name, *type;
	uint32_t off, n;
	Site at;
} SharedObj;

struct Func {
	char *name;
	struct CUmod_st *mod;
	void (*invoke)(void **params);
	const uint32_t *param_size; /* number of parameters, then their sizes */
	int n_param;
	int max_threads, min_blocks;
	int max_dyn;
	int nonportable, carveout; /* carveout: preferred percentage of shared memory; 0: not set */
	SharedObj *obj;
	int n_obj;
	uint32_t static_bytes;
	const char *source; /* source text of the kernel, valid while its module is loaded */
	const char *layouts,
	    *layouts_end; /* clang's record layouts; NULL: compiled for the fast mode */
	/* name and type of the struct that the kernel lays over dynamic shared memory; NULL: not
	 * declared yet */
	const char *arena, *arena_type;
};

/* ---- timeline.c: operations of all streams as one graph ---- */
typedef enum { OP_KERNEL, OP_COPY, OP_SET, OP_HOST, OP_EMPTY } EmuOpKind;
typedef enum { OP_QUEUED, OP_RUNNING, OP_DONE } OpState;
enum { TIMELINE = 2048 };
typedef struct OpSet {
	uint64_t w[TIMELINE / 64];
} OpSet;

struct EmuOp {
	uint64_t seq;
	EmuOpKind kind;
	OpState state;
	int n_dep, n_prog;
	uint64_t *dep,
	    *prog; /* sequence numbers of predecessors by full and by programmatic edges */
	uint32_t buid0, n_block;
	const char *name;
	/* checking mode: operations ordered before this one's start, and before its end */
	OpSet before, after;
	/* Checking mode with several devices: clocks of blocks that may still run. The threads of
	 * the operation start with `from`. After their wait for programmatic predecessors they also
	 * have `waited`. They leave `acquired` to later operations. */
	KnownClocks *from, *waited, *acquired;
	/* kernel */
	Func *fn;
	Dim grid, block, cluster;
	uint32_t dyn;
	bool cooperative, requested; /* requested: a programmatic edge was requested */
	void **param;                /* pointers into param_mem */
	char *param_mem;
	uint32_t *order; /* order in which blocks (or clusters) start */
	uint32_t next, n_done, n_unit;
	EmuBlock **res; /* resident blocks */
	int n_res, max_res;
	uint32_t grid_arrived;
	uint32_t grid_epoch;
	bool any_constant; /* checking mode: the kernel has read through the read-only path */
	bool any_waited;
	bool any_trigger, early_trigger; /* a thread has triggered dependents; a thread has done so
	                                    before its wait */
	uint32_t n_triggered; /* number of blocks that have triggered dependents or ended */
	/* copy, set */
	char *dst, *src, *stage; /* stage: copy of pageable source memory */
	size_t bytes;
	uint64_t value;
	int value_size;
	/* pinned.c. host_dst: the target is host memory; watched: a checksum of the source was
	 * taken when the copy was queued; intact: the source has not changed since */
	bool host_dst, watched, intact;
	uint64_t sum;
	char *held;
	void (*host_fn)(void *);
	void *host_arg;
	struct LibraryWork *work; /* work of a library (stream_library.h), followed by its data */
	size_t work_bytes;
	int depth; /* length of the chain of unfinished programmatic predecessors */
	int device;
};

/* ---- engine state ---- */
extern Thread *emu_cur EXPORT;
extern bool emu_check; /* checking mode */
extern int emu_arch;   /* 80, 90, ... of the current device */
typedef struct EmuSm {
	int arch, threads, blocks, shared_kb;
} EmuSm;
const EmuSm *emu_sm(void); /* per-SM limits */

/* util.c */
void *emu_alloc(size_t n);       /* zeroed; ends the process if there is no memory */
void *emu_alloc_lines(size_t n); /* like emu_alloc, aligned to a cache line */
uint64_t emu_sum(uint64_t sum, const void *p, size_t n);
void emu_seed(uint64_t seed);
uint64_t emu_random(void);
uint64_t emu_random_below(uint64_t n);
char *emu_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
long emu_env(const char *name, long otherwise);
float emu_half(uint16_t h);
float emu_e4m3(uint8_t b);
typedef float V8 __attribute__((vector_size(32), aligned(4), may_alias));

/* report.c: findings. emu_die ends the running kernel and does not return. */
extern int emu_error; /* driver error code of the finding that ended the context; 0: none */
NORETURN void emu_die(int code, Site at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
NORETURN void emu_die_pc(int code, const void *pc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
NORETURN void emu_die_at(int code, const void *pc, Site at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* source position stored in a cell, as allocated text, if the kernel of `op` made the access */
char *emu_place_of(const EmuOp *op, uint32_t place);
uint32_t emu_site(Site at); /* number of a source position, 31 bits */
void emu_finding(Thread *t, int code, Site at, const char *text);
void emu_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
char *emu_thread_name(const Thread *t);
char *emu_access_name(uint32_t buid, unsigned thread);
char *emu_place(const void *pc);
void emu_signals(void);
void emu_report_clear(void);

/* fiber.c */
extern size_t emu_stack_bytes;
char *fiber_stack(void);
void fiber_stack_free(char *stack);
bool fiber_owns(const void *p); /* whether p is in some fiber's stack */
void *fiber_prepare(char *stack, unsigned color, void (*entry)(void));

/* block.c */
extern Thread emu_host;
EmuBlock *block_start(EmuOp *op, uint32_t index, Cluster *cluster, unsigned rank);
void block_free(EmuBlock *b);
/* runs the block until no thread is ready, a thread yields, or the block ends; false after a
 * finding */
bool block_slice(EmuBlock *b);
bool block_has_ready(const EmuBlock *b);
bool block_done(const EmuBlock *b);
void block_wake(EmuBlock *b, int warp, uint32_t lanes);
void block_wait(ThreadState why,
                Site at); /* suspends the current thread; returns when another thread wakes it */
void block_yield(Site at);
NORETURN void
block_abandon(void);          /* ends the block after a finding and returns to the host fiber */
extern uint64_t emu_progress; /* counter of everything that threads do except spins */
uint64_t block_spins(void);   /* spins since emu_progress last changed */
extern bool emu_give_up; /* set when no other thread will end the wait: the next spin is reported as
                            endless */

/* region.c: regions of device, pinned and shared memory */
typedef enum { R_DEVICE, R_PINNED, R_SHARED, R_MODULE } RegionKind;
typedef struct {
	uint64_t w, r;
} Cell;
/* Encoded source positions (shadow.c) of the last write and the last read of a cell */
typedef struct {
	uint32_t w, r;
} CellSites;
struct Region {
	char *lo, *hi;
	RegionKind kind;
	EmuBlock *blk;    /* block that owns the shared memory */
	uint32_t dyn;     /* shared memory: bytes of the dynamic part */
	Cell *cell;       /* one per two bytes; the system provides the memory on first access */
	CellSites *place; /* one per two bytes; the system provides the memory on first access */
	/* Per two bytes: number (low 32 bits) of the last launch that read them through the
	 * read-only path. NULL: no launch has. */
	uint32_t *constant;
	char *base; /* mapping, including guards */
	size_t map_bytes, bytes;
	int device; /* owning device; -1: none */
	bool lazy;  /* large region: pages that no kernel has written do not record their readers */
	uint64_t *page_w; /* lazy regions: writer of a whole page without cells; 0: none */
	uint8_t *page_cells;
	int ro;
};
Region *region_new(RegionKind kind, size_t bytes);
Region *region_adopt(RegionKind kind, void *lo,
                     size_t bytes); /* registers memory that the caller owns */
void region_drop(Region *r);
Region *region_of(const void *p);
/* records a read through the read-only path by this launch */
void region_constant(Region *r, const void *p, size_t n, uint32_t launch);
char *region_describe(const void *p);
Region *region_damage(const char **where); /* first region with a damaged zone; repairs its zones */

/* reader_sets.c: a run of lanes of one warp that read at the same clock. at: warp << 17 | clock; n:
 * number of runs in the set */
typedef struct {
	uint32_t parent, lanes, buid, at, n;
} EmuRun;
const EmuRun *
readers_run(uint32_t buid,
            uint32_t id); /* newest run of a set; NULL if the set is empty or forgotten */
/* returns set `from` with reader e added. single: `from` is one reader (thread << 17 | clock), not
 * a set */
uint32_t readers_add(uint32_t buid, uint32_t from, bool single, uint32_t e);
uint32_t launches_with(uint32_t set,
                       uint64_t seq);  /* sets of launches; number 0 is the empty set */
uint64_t launches_next(uint32_t *set); /* removes an element of the set and returns it; 0: the set
                                          is empty or forgotten */

/* shadow.c */
enum {
	ACCESS_PLAIN,
	ACCESS_DEVICE,
	ACCESS_CLUSTER,
	ACCESS_BLOCK,
	ACCESS_COPY,
	ACCESS_SYSTEM
}; /* scopes of atomics; COPY: access by a bulk or tensor copy */
void shadow_access(const void *p, size_t n, bool write, int atomic, const void *pc, Site at);
void shadow_read(const void *p, size_t n, const void *pc,
                 Site at); /* shadow_access with a fast path for ordered accesses */
void shadow_write(const void *p, size_t n, const void *pc, Site at);
void shadow_forget(void); /* before another block runs */
void shadow_more_ordered(
    void); /* must be called when the running thread becomes ordered after more operations */
void shadow_read_only(const void *p, size_t n, Site at); /* through the read-only path */
void shadow_clear(Region *r, size_t off, size_t n);      /* marks memory as never written */
void shadow_inflight(void *p, size_t n); /* target of an asynchronous copy: not readable */
void shadow_host_write(EmuOp *op, void *p, size_t n);
void shadow_host_read(EmuOp *op, const void *p, size_t n);
bool shadow_written(const void *p, size_t n, size_t *off);
char *shadow_neighbour(const void *p);
void shadow_copy_written(void *dst, const void *src, size_t n);
void shadow_async_write(EmuBlock *b, void *p, size_t n, Site at);
void shadow_async_read(const void *p, size_t n, int slot, uint32_t clk,
                       Site at); /* access by the running thread through the asynchronous proxy */

/* Returns whether any of [p, p + n) was read by a thread of block `buid` or a later one, or of a
 * launch after seq. May return true without such a read, because a later write erases earlier
 * readers. */
bool shadow_read_since(const Region *r, const char *p, size_t n, uint32_t buid, uint64_t seq);

/* prefetch.c: records a prefetch to L2 by the running thread; checks at the end of a kernel whether
 * it was the last one that could have read earlier prefetched bytes */
void prefetch_note(const void *p, size_t n, Site at);
void prefetch_kernel_ended(const EmuOp *op);
void prefetch_forget(const Region *r); /* called when the memory is freed */

/* type_layout.c: name of the member at an offset of a shared object, as allocated text, for example
 * "byte 4 of ring.scale"; NULL: unknown */
char *member_of(const Func *f, const char *type, size_t off);
/* name of the pointer in a parameter, as allocated text, for example "w (argument 3)" */
char *func_argument(const Func *f, int param, size_t off);

/* shared.c */
uint32_t shared_static_base(uint32_t dyn);
void shared_start(EmuBlock *b); /* poisons the static objects known so far */
bool shared_within(const Region *r, const char *p, size_t n);
void
shared_span(EmuBlock *b,
            const char *p); /* sets span_lo and span_n to those of the object that contains p */

/* vector_clock.c */
VC *vc_new(int n);
VC *vc_ref(VC *v);
void vc_drop(VC *v);
KnownClocks *known_ref(KnownClocks *k);
void known_drop(KnownClocks *k);
KnownClocks *
known_join(KnownClocks *a,
           const KnownClocks *b); /* merges b into a and releases a's old version; b may be NULL */
/* returns all clocks ordered before t, its own writes included, and increments t's clock */
KnownClocks *clock_publish(Thread *t);
void clock_acquire(Thread *t, const KnownClocks *k);
void clock_block_barrier(EmuBlock *b);
void clock_warp(EmuBlock *b, int warp, uint32_t lanes);
void clock_blocks(EmuBlock **b, int n); /* cluster or grid barrier */
bool clock_after(const Thread *t, uint32_t buid, unsigned thread, uint32_t clk);
/* whether t is ordered after at least one action of that block */
bool clock_after_any(const Thread *t, uint32_t buid);
void clock_start(Thread *t);
void clock_waited(Thread *t);  /* orders t after its kernel's programmatic predecessors */
void clock_leave(EmuBlock *b); /* passes the clocks of the block's finished threads to the kernel */
bool
clock_acquired(const Thread *t); /* whether t has acquired something since its kernel started */
KnownClocks *known_keep(KnownClocks *k, bool (*keep)(uint32_t buid, const void *user),
                        const void *user); /* consumes k */
void clock_stop(Thread *t);
KnownClocks *clock_async(EmuBlock *b); /* clocks of the block's asynchronous copies so far */
void clock_order_after(Thread *t, int slot,
                       uint32_t clk); /* whether t is ordered after an asynchronous reader at clk */
void clock_proxy_fence(Thread *t, bool global);
/* whether a proxy fence of t is ordered after clock clk of `by`, a thread of its cluster */
bool clock_proxy_fenced(const Thread *t, const Thread *by, uint32_t clk, bool global);

/* sync.c, mbarrier.c */
void sync_renumber(uint64_t seq); /* applies op_forget to everything that was released */
/* called when no kernel is running; keeps releases between devices unless `all` */
void sync_reset(bool all);
void mbar_forget(EmuBlock *b);
bool mbar_inflight(const EmuBlock *b);
/* ends the kernel if the thread polls an mbarrier that cannot complete */
void mbar_stuck(const Thread *t, Site at);
void mbar_leave(EmuBlock *b, Site at); /* called when the last thread of the block is exiting */
/* arrival of a thread whose copies have completed */
void mbar_late_arrive(Thread *t, void *bar, Site at);

/* tma.c: tiles of tensor maps; p is the dense image of a box in shared memory */
typedef struct TensorMap TensorMap;
const TensorMap *tensor_map_at(const void *p, int rank, Site at);
size_t tensor_box_bytes(const TensorMap *m);
/* ends the kernel if the box is invalid, or if a store writes outside the tensor */
void tensor_place(const TensorMap *m, const int *c, bool store, Site at);
void tensor_touch(const TensorMap *m, const int *c, bool write, Site at);
uint64_t tensor_sum(const TensorMap *m, const int *c); /* checksum of the data that a load reads */
void tensor_get(const TensorMap *m, const int *c, char *shared, const char *arena);
void tensor_put(const TensorMap *m, const int *c, const char *shared, const char *arena);
void store_leave(Thread *t);
void store_forget(Thread *t);

/* wgmma.c */
void wgmma_leave(Thread *t);
void wgmma_forget(EmuBlock *b);

/* mma.c */
void mma_run(int op, Fragments *f);
void mma_ldmatrix(int op, int n, uint32_t mask, Thread *lane0, Site at);

/* read by tests through dlsym */
const char *emu_last_report(void);
int emu_report_count(void);

/* pinned.c */
bool emu_host_read(void *dst, const void *src, size_t n);
void pinned_queued(EmuOp *op);
void pinned_copy(EmuOp *op);
void pinned_used(const void *p, size_t n, bool write);
void pinned_host(void (*fn)(void *), void *arg);
void pinned_settle(void);
void pinned_drop(EmuOp *op);

/* cp_async.c */
void copy_forget(Thread *t);
void copy_free(Thread *t);
/* completes the copies on which an arrival of t at this barrier depends */
void copy_complete(Thread *t, const void *bar);

extern __thread bool emu_in_host_fn; /* true while a function of cuLaunchHostFunc runs */
void emu_let_others_run(void);       /* device.c: lets other threads call the driver for a moment */
int emu_contexts(void);              /* number of devices in use */
int emu_device(void);                /* device of the calling thread's context; -1: none */
bool emu_peers(int from, int to); /* whether kernels of one device may access the other's memory */

/* timeline.c */
extern uint64_t timeline_base;
EmuOp *op_new(EmuOpKind kind, const char *name);
void op_add(EmuOp *op, const uint64_t *dep, int n_dep, const uint64_t *prog, int n_prog);
EmuOp *op_at(
    uint64_t seq); /* operation by number; NULL: it has finished, and the host has waited for it */
bool op_done(uint64_t seq);
void timeline_run(const uint64_t *seq, int n); /* runs until the listed operations have finished */
void timeline_run_all(void);
void timeline_run_device(void); /* runs everything queued on the device of the calling thread */
void timeline_some(void);       /* runs some queued work, at random times */
void timeline_known(const uint64_t *seq,
                    int n); /* records that the host has waited for these operations */
/* records that the host has waited for everything finished on the device; -1: on all devices */
void timeline_known_all(int device);
bool timeline_busy(int device); /* whether the device has unfinished work */
void timeline_drop(void);       /* after an error: discards everything queued */
bool op_before(uint64_t a, const EmuOp *b, bool waited);
void op_acquires(EmuOp *op, const OpSet *of); /* a thread of op has acquired from an operation that
                                                 is ordered after these */
/* operations that a thread of op passes on by a release */
void op_notified(const EmuOp *op, bool waited, OpSet *of);
void op_forget(OpSet *of, uint64_t seq); /* called before the sequence number is reused */
EmuOp *op_of_buid(uint32_t buid);
bool op_known(uint64_t seq); /* whether the host has waited for the operation; in fast mode, whether
                                it has finished */
/* finds an operation for which uses() is true and for which the host has not waited */
const EmuOp *timeline_uses(bool (*uses)(const EmuOp *op, const void *what), const void *what);
int func_residency(const Func *f, int threads, uint32_t dyn);

#endif
