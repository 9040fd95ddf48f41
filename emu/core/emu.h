/* Internal interface of the emulator, shared by the engine (fibers, blocks, collectives), the
 * checker (shadow cells, clocks) and the driver. One lock, taken by every driver call, protects all
 * of it. Kernels run on the calling thread as fibers. */
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

/* Source position of a wrapper's call in a kernel */
typedef struct {
	const char *file;
	int line;
} Site;

/* ---- vector_clock.c: happens-before order of writes ---- */
typedef struct VC {
	int ref, n;
	uint32_t c[];
} VC; /* per thread of one block: the latest known clock */
typedef struct KnownClocks {
	int ref, n;
	struct {
		uint32_t buid;
		VC *vc;
	} e[];
} KnownClocks; /* other blocks, sorted by buid */

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
} CpArrival; /* arrives once the first `upto` copies have landed */
/* Copies are numbered from the start of the thread. Those from `landed` on are in a ring of `cap`
 * entries (a power of two). */
typedef struct CpQueue {
	CpCopy *copy;
	uint32_t *group;
	CpArrival *arr;
	uint32_t issued, landed, cap;
	int n_group, n_arr;
	short cap_group, cap_arr;
} CpQueue;

/* Bulk copies from shared memory. The source is read at the group's wait; the copy lands at the
 * full wait or when the thread exits. */
typedef struct StoreQueue {
	struct TmaStore *s;
	int n, cap;
} StoreQueue;

/* Registers that matrix instructions in flight use: as accumulators (whole), or as an input until
 * `upto` instructions have finished */
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

/* A thread's last proxy fences, for shared and for global memory: its own clock, and what was
 * ordered before them in its block and in others */
typedef struct ProxyFences {
	uint32_t clk[2];
	VC *vc[2];
	KnownClocks *kn[2];
} ProxyFences;

/* The device header reads the first fields by inline assembly. Fields are grouped into lines of 64
 * bytes: used by every collective, by the checking mode, by few kernels. */
struct Thread {
	uint32_t tid[3], bid[3], bdim[3], gdim[3], lane, lin, warp, cluster_rank;
	void *sp;
	EmuBlock *blk;
	struct Warp *w;
	uint64_t *io; /* operands and results of other warp collectives, on the thread's stack */
	Site at;      /* collective that it waits in */
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
	/* the fields below outlive the block */
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
	/* bit of any_ready for its rank in the order of warps; bits of the warps before it */
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
	Site bar_at, zero_at; /* last __syncthreads; last use of barrier 0 by part of the block */
	Thread *t;
	uint32_t any_ready;  /* by rank */
	uint8_t warp_at[32]; /* by rank */
	Region *arena;
	uint32_t span_lo, span_n; /* arena object of the last access */
	struct Cluster *cluster;
	unsigned cluster_rank;
	int n_obj; /* number of static objects seen so far */
	bool triggered, counted;
	int n_trigger;
	struct Mbar *mbar;
	int n_mbar;
	/* checking mode, by rank in the cluster: last clock of each thread there that arrived
	 * at an mbarrier here or accessed shared memory here */
	uint32_t *far_clk[16];
	Site far_at; /* the last such access, and its source position */
	const void *far_pc;
	NamedBar named[16];
	uint32_t bar_epoch;
	uint32_t async_clk, store_clk;
	/* operations known through relaxed atomics of its threads, until a fence; NULL: none */
	struct OpSet *acquired;
	struct Wg *wg;
	Warp warp[32]; /* last field: only nw are allocated */
};

/* Entries of a block's vector clocks: its threads, its asynchronous writes, the reads of each
 * warpgroup's matrix instructions, the reads of bulk stores. */
#define CLOCK_ASYNC(b) ((b)->nt)
#define CLOCK_WG(b, i) ((b)->nt + 1 + (i))
#define CLOCK_STORE(b) ((b)->nt + 1 + (b)->nt / 128)
#define CLOCK_N(b) ((b)->nt + 2 + (b)->nt / 128)

typedef struct Cluster {
	int n, arrived, live_blocks;
	EmuBlock *b[16];
} Cluster;

/* A shared object of a kernel. Its offset is the same in every block, so that a cluster may map
 * it. */
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
	const uint32_t *param_size; /* count, then sizes */
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
	/* struct that dynamic shared memory is used as; NULL: not declared yet */
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
	uint64_t *dep, *prog; /* sequence numbers: full and programmatic edges */
	uint32_t buid0, n_block;
	const char *name;
	/* checking mode: operations ordered before its start; before its end */
	OpSet before, after;
	/* Checking mode with several devices: clocks of blocks that may still run. The operation's
	 * threads start with `from`, continue with `waited` after their wait for programmatic
	 * predecessors, and leave `acquired` to later operations. */
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
	bool any_constant; /* checking mode: has read through the read-only path */
	bool any_waited;
	bool any_trigger,
	    early_trigger;    /* a thread has triggered dependents; one did so before its wait */
	uint32_t n_triggered; /* blocks that have triggered dependents or ended */
	/* copy, set */
	char *dst, *src, *stage; /* stage: copy of pageable source memory */
	size_t bytes;
	uint64_t value;
	int value_size;
	/* pinned.c. host_dst: host memory; watched: the source's sum was taken at queueing */
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
void *emu_alloc(size_t n);       /* zeroed; ends the process if memory runs out */
void *emu_alloc_lines(size_t n); /* the same, aligned to a cache line */
uint64_t emu_sum(uint64_t sum, const void *p, size_t n);
void emu_seed(uint64_t seed);
uint64_t emu_random(void);
uint64_t emu_random_below(uint64_t n);
char *emu_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
long emu_env(const char *name, long otherwise);
float emu_half(uint16_t h);
float emu_e4m3(uint8_t b);
typedef float V8 __attribute__((vector_size(32), aligned(4), may_alias));

/* report.c: findings. emu_die ends the running kernel and never returns. */
extern int emu_error; /* driver error code of the finding that ended the context; 0: none */
NORETURN void emu_die(int code, Site at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
NORETURN void emu_die_pc(int code, const void *pc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
NORETURN void emu_die_at(int code, const void *pc, Site at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* source position from a cell that this kernel accessed, as allocated text */
char *emu_place_of(const EmuOp *op, uint32_t place);
uint32_t emu_site(Site at); /* 31 bits */
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
/* runs until no thread is ready, one yields, or the block ends; false after a finding */
bool block_slice(EmuBlock *b);
bool block_has_ready(const EmuBlock *b);
bool block_done(const EmuBlock *b);
void block_wake(EmuBlock *b, int warp, uint32_t lanes);
void block_wait(ThreadState why, Site at); /* current thread waits; returns when woken */
void block_yield(Site at);
NORETURN void block_abandon(void); /* returns to the host after a finding */
extern uint64_t emu_progress;      /* counts everything except spins */
uint64_t block_spins(void);        /* since the last progress */
extern bool emu_give_up; /* no other thread will end the wait: the next spin is reported */

/* region.c: regions of device, pinned and shared memory */
typedef enum { R_DEVICE, R_PINNED, R_SHARED, R_MODULE } RegionKind;
typedef struct {
	uint64_t w, r;
} Cell;
/* Source positions of the last write and the last read of a cell (encoded by shadow.c) */
typedef struct {
	uint32_t w, r;
} CellSites;
struct Region {
	char *lo, *hi;
	RegionKind kind;
	EmuBlock *blk;    /* owner of shared memory */
	uint32_t dyn;     /* shared memory: bytes of the dynamic part */
	Cell *cell;       /* per two bytes, lazily backed */
	CellSites *place; /* per two bytes, lazily backed */
	/* per two bytes: low 32 bits of the number of the last launch that read them through the
	 * read-only path; NULL: no launch has */
	uint32_t *constant;
	char *base; /* mapping, including guards */
	size_t map_bytes, bytes;
	int device;       /* owning device; -1: none */
	bool lazy;        /* large: readers are not recorded in pages that no kernel wrote */
	uint64_t *page_w; /* lazy regions: writer of a whole page that has no cells; 0: none */
	uint8_t *page_cells;
	int ro;
};
Region *region_new(RegionKind kind, size_t bytes);
Region *region_adopt(RegionKind kind, void *lo, size_t bytes); /* memory owned by the caller */
void region_drop(Region *r);
Region *region_of(const void *p);
/* records a read through the read-only path by this launch */
void region_constant(Region *r, const void *p, size_t n, uint32_t launch);
char *region_describe(const void *p);
Region *region_damage(const char **where); /* first region with a damaged zone; repairs its zones */

/* reader_sets.c: a run of lanes that read at one clock. at: warp << 17 | clock; n: number of runs
 * in the set */
typedef struct {
	uint32_t parent, lanes, buid, at, n;
} EmuRun;
const EmuRun *readers_run(uint32_t buid,
                          uint32_t id); /* newest run of a set; NULL if the set is 0 or forgotten */
/* adds e; `single`: `from` is one reader (thread << 17 | clock), not a set */
uint32_t readers_add(uint32_t buid, uint32_t from, bool single, uint32_t e);
uint32_t launches_with(uint32_t set, uint64_t seq); /* sets of launches; 0 is the empty one */
uint64_t launches_next(uint32_t *set); /* removes and returns one element; 0: none, or forgotten */

/* shadow.c */
enum {
	ACCESS_PLAIN,
	ACCESS_DEVICE,
	ACCESS_CLUSTER,
	ACCESS_BLOCK,
	ACCESS_COPY,
	ACCESS_SYSTEM
}; /* atomics by scope; COPY: by a bulk or tensor copy */
void shadow_access(const void *p, size_t n, bool write, int atomic, const void *pc, Site at);
void shadow_read(const void *p, size_t n, const void *pc,
                 Site at); /* shadow_access with a fast path for ordered accesses */
void shadow_write(const void *p, size_t n, const void *pc, Site at);
void shadow_forget(void);       /* before another block runs */
void shadow_more_ordered(void); /* the thread is now ordered after more operations */
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
                       Site at); /* by the running thread, through the asynchronous proxy */

/* whether a thread of a block from `buid` on, or of a launch after seq, has read any of [p, p + n),
 * or may have: a later write erases earlier readers */
bool shadow_read_since(const Region *r, const char *p, size_t n, uint32_t buid, uint64_t seq);

/* prefetch.c: a prefetch to L2 by the running thread; the end of a kernel, which may be the last
 * one that could read what was prefetched */
void prefetch_note(const void *p, size_t n, Site at);
void prefetch_kernel_ended(const EmuOp *op);
void prefetch_forget(const Region *r); /* the memory is freed */

/* type_layout.c: name of the member at an offset of a shared object, such as "byte 4 of
 * ring.scale", as allocated text; NULL: unknown */
char *member_of(const Func *f, const char *type, size_t off);
/* name of the pointer in a parameter, such as "w (argument 3)", as allocated text */
char *func_argument(const Func *f, int param, size_t off);

/* shared.c */
uint32_t shared_static_base(uint32_t dyn);
void shared_start(EmuBlock *b); /* poisons the static objects known so far */
bool shared_within(const Region *r, const char *p, size_t n);
void shared_span(EmuBlock *b, const char *p); /* sets span_lo and span_n to the object at p */

/* vector_clock.c */
VC *vc_new(int n);
VC *vc_ref(VC *v);
void vc_drop(VC *v);
KnownClocks *known_ref(KnownClocks *k);
void known_drop(KnownClocks *k);
KnownClocks *known_join(KnownClocks *a, const KnownClocks *b); /* consumes a; b may be NULL */
/* everything ordered before t, including its own writes; increments t's clock */
KnownClocks *clock_publish(Thread *t);
void clock_acquire(Thread *t, const KnownClocks *k);
void clock_block_barrier(EmuBlock *b);
void clock_warp(EmuBlock *b, int warp, uint32_t lanes);
void clock_blocks(EmuBlock **b, int n); /* cluster or grid barrier */
bool clock_after(const Thread *t, uint32_t buid, unsigned thread, uint32_t clk);
/* t is ordered after at least one action of that block */
bool clock_after_any(const Thread *t, uint32_t buid);
void clock_start(Thread *t);
void clock_waited(Thread *t);  /* orders t after its kernel's programmatic predecessors */
void clock_leave(EmuBlock *b); /* its threads have finished; passes their clocks to the kernel */
bool clock_acquired(const Thread *t); /* t has acquired something since its kernel started */
KnownClocks *known_keep(KnownClocks *k, bool (*keep)(uint32_t buid, const void *user),
                        const void *user); /* consumes k */
void clock_stop(Thread *t);
KnownClocks *clock_async(EmuBlock *b); /* clocks of the block's asynchronous copies so far */
void clock_order_after(Thread *t, int slot,
                       uint32_t clk); /* t is ordered after an asynchronous reader */
void clock_proxy_fence(Thread *t, bool global);
/* a proxy fence of t is ordered after clock clk of `by`, a thread of its cluster */
bool clock_proxy_fenced(const Thread *t, const Thread *by, uint32_t clk, bool global);

/* sync.c, mbarrier.c */
void sync_renumber(uint64_t seq); /* op_forget for everything that was released */
/* no kernel is running; releases between devices are kept unless `all` */
void sync_reset(bool all);
void mbar_forget(EmuBlock *b);
bool mbar_inflight(const EmuBlock *b);
/* ends the kernel if the thread polls an mbarrier that will not complete */
void mbar_stuck(const Thread *t, Site at);
void mbar_leave(EmuBlock *b, Site at); /* its last thread is exiting */
/* arrival of a thread whose copies have landed */
void mbar_late_arrive(Thread *t, void *bar, Site at);

/* tma.c: tiles of tensor maps; p is the dense image of a box in shared memory */
typedef struct TensorMap TensorMap;
const TensorMap *tensor_map_at(const void *p, int rank, Site at);
size_t tensor_box_bytes(const TensorMap *m);
/* ends the kernel if the box is invalid, or if a store writes beyond the
 * tensor */
void tensor_place(const TensorMap *m, const int *c, bool store, Site at);
void tensor_touch(const TensorMap *m, const int *c, bool write, Site at);
uint64_t tensor_sum(const TensorMap *m, const int *c); /* checksum of the data of a load */
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
/* lands the copies that an arrival of t at this barrier depends on */
void copy_complete(Thread *t, const void *bar);

extern __thread bool emu_in_host_fn; /* running a function of cuLaunchHostFunc */
void emu_let_others_run(void);       /* device.c: lets other threads call the driver for a moment */
int emu_contexts(void);              /* number of devices in use */
int emu_device(void);                /* device of the calling thread's context; -1: none */
bool emu_peers(int from, int to); /* whether kernels of one device may access the other's memory */

/* timeline.c */
extern uint64_t timeline_base;
EmuOp *op_new(EmuOpKind kind, const char *name);
void op_add(EmuOp *op, const uint64_t *dep, int n_dep, const uint64_t *prog, int n_prog);
EmuOp *op_at(uint64_t seq); /* NULL: finished, and the host has waited for it */
bool op_done(uint64_t seq);
void timeline_run(const uint64_t *seq, int n); /* runs until these have finished */
void timeline_run_all(void);
void timeline_run_device(void);                  /* everything on the calling thread's device */
void timeline_some(void);                        /* sometimes runs some queued work */
void timeline_known(const uint64_t *seq, int n); /* the host has waited for these */
/* the host has waited for everything finished on it; -1: on all devices */
void timeline_known_all(int device);
bool timeline_busy(int device); /* it has unfinished work */
void timeline_drop(void);       /* after an error: discards everything queued */
bool op_before(uint64_t a, const EmuOp *b, bool waited);
void op_acquires(
    EmuOp *op,
    const OpSet *of); /* a thread of op has acquired from an operation ordered after these */
/* operations that a thread of op passes on by a release */
void op_notified(const EmuOp *op, bool waited, OpSet *of);
void op_forget(OpSet *of, uint64_t seq); /* the sequence number is reused */
EmuOp *op_of_buid(uint32_t buid);
bool op_known(uint64_t seq); /* the host has waited for it; in fast mode: it has finished */
/* finds an operation that the host has not waited for and for which uses() is true */
const EmuOp *timeline_uses(bool (*uses)(const EmuOp *op, const void *what), const void *what);
int func_residency(const Func *f, int threads, uint32_t dyn);

#endif
