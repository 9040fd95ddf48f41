/* Inside of the emulator: what the engine (fibers, blocks, collectives), the checker (shadow cells,
 * clocks) and the driver stand-in share. One lock, taken by every driver call, guards all of it;
 * kernels run on the calling thread as fibers. */
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

/* Where in the kernel's source a wrapper was called. */
typedef struct {
	const char *file;
	int line;
} Site;

/* ---- vector_clock.c: who knows of whose writes ---- */
typedef struct VC {
	int ref, n;
	uint32_t c[];
} VC; /* per thread of one block: the last clock known */
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
/* Copies are counted from the thread's start; those from `landed` on lie in a ring of cap (a power
 * of two). */
typedef struct CpQueue {
	CpCopy *copy;
	uint32_t *group;
	CpArrival *arr;
	uint32_t issued, landed, cap;
	int n_group, n_arr;
	short cap_group, cap_arr;
} CpQueue;

/* A bulk copy from shared memory: read at its group's wait, landed at the full wait or when the
 * thread leaves. */
typedef struct StoreQueue {
	struct TmaStore *s;
	int n, cap;
} StoreQueue;

/* What a thread has issued of warpgroup matrix instructions; the numbers count since the start of
 * the kernel. */
typedef struct EmuHeld {
	const char *lo, *hi;
	bool whole;
	uint32_t upto;
} EmuHeld; /* registers in flight: whole, or for reading only until that many instructions are done
            */
typedef struct WgThread {
	uint32_t next, end[16];
	int n_group;
	bool fenced;
	EmuHeld busy[24];
	int n_busy;
} WgThread;

/* A thread's last fences against the asynchronous proxy, for shared and for global memory: its own
 * clock, and what it knew of its block and of others */
typedef struct ProxyFences {
	uint32_t clk[2];
	VC *vc[2];
	KnownClocks *kn[2];
} ProxyFences;

/* The first fields are read by the device header through inline assembly. A line of 64 bytes for
 * what every collective touches, one for what the checking mode does, one for what few kernels use.
 */
struct Thread {
	uint32_t tid[3], bid[3], bdim[3], gdim[3], lane, lin, warp, cluster_rank;
	void *sp;
	EmuBlock *blk;
	struct Warp *w;
	uint64_t
	    *io; /* operands and results of other collectives of a warp: in the thread's stack */
	Site at; /* the collective it waits in */
	ThreadState state;
	uint32_t clk;
	char *stack;
	/* checking mode */
	VC *vc;
	KnownClocks *kn, *fence, *pending;
	WgThread *wg; /* NULL until it issues one */
	uint64_t arg;
	ProxyFences *proxy; /* NULL: no fence yet */
	int nreg;
	bool gdc_waited, in_cluster, fence_cta;
	/* what is behind here outlives the block */
	CpQueue cp;
	StoreQueue bulk;
} __attribute__((aligned(64)));

/* What a warp's lanes bring to a matrix instruction; the result replaces c. */
typedef struct Fragments {
	emu_words a[32];
	emu_u64 b[32];
	emu_four c[32];
} __attribute__((aligned(64))) Fragments;

typedef struct {
	uint32_t mask, arrived;
	int op;
	Site at;
} Rendezvous; /* lanes on their way into one warp collective */
typedef struct Warp {
	uint32_t ready, alive;
	uint32_t rank_bit, before; /* its place in the order of warps, as a bit of any_ready; those
	                              that go first */
	int down, n_meet;          /* down: lanes run from the last to the first */
	struct Fragments *frag;
	Rendezvous meet[8];
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
	    zero_at; /* the last __syncthreads; a use of barrier 0 by a part of the block */
	Thread *t;
	uint32_t any_ready;  /* by rank */
	uint8_t warp_at[32]; /* by rank */
	Region *arena;
	uint32_t span_lo, span_n; /* the object of the arena that was accessed last */
	struct Cluster *cluster;
	unsigned cluster_rank;
	int n_obj; /* static objects met so far */
	bool triggered, counted;
	int n_trigger;
	struct Mbar *mbar;
	int n_mbar;
	uint32_t
	    *far_clk[16]; /* checking mode, by rank in the cluster: the last clock of each thread
	                     there that arrived at an mbarrier or was in shared memory here */
	Site far_at;      /* the last such access, and its place */
	const void *far_pc;
	NamedBar named[16];
	uint32_t bar_epoch;
	uint32_t async_clk, store_clk;
	struct OpSet *heard; /* by relaxed atomics of its threads, until a fence; NULL: nothing */
	struct Wg *wg;
	Warp warp[32]; /* last: those that the block has */
};

/* Entries of a block's vectors of clocks: its threads, its asynchronous writes, the reads of each
 * warpgroup's matrix instructions, the reads of bulk stores. */
#define CLOCK_ASYNC(b) ((b)->nt)
#define CLOCK_WG(b, i) ((b)->nt + 1 + (i))
#define CLOCK_STORE(b) ((b)->nt + 1 + (b)->nt / 128)
#define CLOCK_N(b) ((b)->nt + 2 + (b)->nt / 128)

typedef struct Cluster {
	int n, arrived, live_blocks;
	EmuBlock *b[16];
} Cluster;

/* One shared object of a kernel: the same place in every block, so that a cluster may map it. */
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
	const uint32_t *param_size; /* n, then sizes */
	int n_param;
	int max_threads, min_blocks;
	int max_dyn;
	int nonportable,
	    carveout; /* carveout: percent of shared memory preferred; 0: nothing said */
	SharedObj *obj;
	int n_obj;
	uint32_t static_bytes;
	const char *source; /* the kernel's text, as long as its module is there */
	const char *layouts,
	    *layouts_end; /* clang's layouts of its records; NULL: compiled for the fast mode */
	const char *arena, *arena_type; /* the struct that dynamic shared memory is, as the kernel
	                                   says; NULL: nothing said yet */
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
	OpSet before, after; /* checking mode: what it knows at start; what its end implies */
	/* checking mode, several devices: what is known of blocks that may still run. Its threads
	 * start with `from`, go on with `waited` behind their wait for programmatic predecessors,
	 * and leave `heard` to what comes after. */
	KnownClocks *from, *waited, *heard;
	/* kernel */
	Func *fn;
	Dim grid, block, cluster;
	uint32_t dyn;
	bool cooperative, asked; /* asked: for a programmatic edge */
	void **param;            /* pointers into param_mem */
	char *param_mem;
	uint32_t *order; /* order in which blocks (or clusters) start */
	uint32_t next, n_done, n_unit;
	EmuBlock **res; /* resident blocks */
	int n_res, max_res;
	uint32_t grid_arrived;
	uint32_t grid_epoch;
	bool any_constant; /* checking mode: read something through the read-only path */
	bool any_waited;
	bool any_trigger,
	    early_trigger;    /* a thread has let dependents start; one did before its wait */
	uint32_t n_triggered; /* blocks that have let them start, or ended */
	/* copy, set */
	char *dst, *src, *stage; /* stage: copy of pageable source memory */
	size_t bytes;
	uint64_t value;
	int value_size;
	bool host_dst, watched, intact; /* pinned.c: the source's sum when it was queued; what the
	                                   host may not see yet */
	uint64_t sum;
	char *held;
	void (*host_fn)(void *);
	void *host_arg;
	struct LibraryWork *work; /* a library's (stream_library.h), its data behind it */
	size_t work_bytes;
	int depth; /* how many unfinished programmatic predecessors */
	int device;
};

/* ---- engine state ---- */
extern Thread *emu_cur EXPORT;
extern bool emu_check; /* checking mode */
extern int emu_arch;   /* 80, 90, ... of the device in force */
typedef struct EmuSm {
	int arch, threads, blocks, shared_kb;
} EmuSm;
const EmuSm *emu_sm(void); /* what its multiprocessors hold at the most */

/* util.c */
void *emu_alloc(size_t n);       /* zeroed; ends the process when there is none */
void *emu_alloc_lines(size_t n); /* the same, at the start of a line of the cache */
uint64_t emu_sum(uint64_t sum, const void *p, size_t n);
void emu_seed(uint64_t seed);
uint64_t emu_random(void);
uint64_t emu_random_below(uint64_t n);
char *emu_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
long emu_env(const char *name, long otherwise);
float emu_half(uint16_t h);
typedef float V8 __attribute__((vector_size(32), aligned(4), may_alias));

/* report.c: findings. emu_die ends the running kernel and never returns. */
extern int emu_error; /* driver code of the finding that ended the context, 0 for none */
NORETURN void emu_die(int code, Site at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
NORETURN void emu_die_pc(int code, const void *pc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
NORETURN void emu_die_at(int code, const void *pc, Site at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
char *
emu_place_of(const EmuOp *op,
             uint32_t place); /* a Lines of a cell that this kernel touched, as text to be freed */
uint32_t emu_site(Site at);   /* of 31 bits */
void emu_finding(Thread *t, int code, Site at, const char *text);
void emu_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
char *emu_who(const Thread *t);
char *emu_who_uid(uint32_t buid, unsigned thread);
char *emu_place(const void *pc);
void emu_signals(void);
void emu_report_clear(void);

/* fiber.c */
extern size_t emu_stack_bytes;
char *fiber_stack(void);
void fiber_stack_free(char *stack);
bool fiber_owns(const void *p); /* the address lies in some fiber's stack */
void *fiber_prepare(char *stack, unsigned color, void (*entry)(void));

/* block.c */
extern Thread emu_host;
EmuBlock *block_start(EmuOp *op, uint32_t index, Cluster *cluster, unsigned rank);
void block_free(EmuBlock *b);
bool block_slice(EmuBlock *b); /* run until nothing in it is ready, it yields, or it ends; false
                                  after a finding */
bool block_has_ready(const EmuBlock *b);
bool block_done(const EmuBlock *b);
void block_wake(EmuBlock *b, int warp, uint32_t lanes);
void block_wait(ThreadState why, Site at); /* current thread waits; returns when woken */
void block_yield(Site at);
NORETURN void block_abandon(void); /* after a finding: back to the host */
void grid_meet(EmuOp *op);
extern uint64_t emu_progress; /* counts all that is not a spin */
uint64_t block_spins(void);   /* since the last progress */
extern bool emu_give_up; /* nobody else will bring what is waited for: the next spin is the last */

/* region.c: regions of device, pinned and shared memory */
typedef enum { R_DEVICE, R_PINNED, R_SHARED, R_MODULE } RegionKind;
typedef struct {
	uint64_t w, r;
} Cell;
typedef struct {
	uint32_t w, r;
} LineTable; /* of the source: of the last write and the last read of a cell; shadow.c says how */
struct Region {
	char *lo, *hi;
	RegionKind kind;
	EmuBlock *blk;      /* shared memory: whose */
	uint32_t dyn;       /* shared memory: bytes of the dynamic part */
	Cell *cell;         /* per two bytes, lazily backed */
	LineTable *place;   /* the same */
	uint32_t *constant; /* per two bytes: the last launch (its number, truncated) that read them
	                       through the read-only path; NULL: none did */
	char *base;         /* mapping, guards included */
	size_t map_bytes, bytes;
	int device;       /* whose memory; -1: of no one device */
	bool lazy;        /* large: readers are not recorded in pages that no kernel wrote */
	uint64_t *page_w; /* lazy regions: who wrote a whole page that has no cells; 0 none */
	uint8_t *page_cells;
	int ro;
};
Region *region_new(RegionKind kind, size_t bytes);
Region *region_adopt(RegionKind kind, void *lo, size_t bytes); /* memory of someone else */
void region_drop(Region *r);
Region *region_of(const void *p);
void region_constant(Region *r, const void *p, size_t n,
                     uint32_t launch); /* read by it through the read-only path */
char *region_describe(const void *p);
Region *region_damage(const char **where); /* the first damaged one; its zones are repaired */

/* reader_sets.c: a run of lanes that read at one clock; at: warp << 17 | clock; n: runs of the set
 */
typedef struct {
	uint32_t parent, lanes, buid, at, n;
} EmuRun;
const EmuRun *
readers_run(uint32_t buid,
            uint32_t id); /* the newest run of a set; NULL when it is forgotten, or 0 */
uint32_t readers_add(uint32_t buid, uint32_t from, bool single,
                     uint32_t e); /* e, or a single reader: thread << 17 | clock */
uint32_t launches_with(uint32_t set, uint64_t seq); /* sets of launches: 0 is the empty one */
uint64_t launches_next(uint32_t *set); /* one of a set, which becomes the rest; 0: forgotten */

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
                 Site at); /* the same, soon done with what is in order */
void shadow_write(const void *p, size_t n, const void *pc, Site at);
void shadow_forget(void); /* before another block runs */
void shadow_learnt(void); /* the thread is ordered after more than before */
void shadow_read_only(const void *p, size_t n,
                      Site at); /* through the path for what the kernel never writes */
void shadow_clear(Region *r, size_t off, size_t n); /* as if nothing had been written */
void shadow_inflight(void *p, size_t n); /* target of an asynchronous copy: nothing to read */
void shadow_host_write(EmuOp *op, void *p, size_t n);
void shadow_host_read(EmuOp *op, const void *p, size_t n);
bool shadow_written(const void *p, size_t n, size_t *off);
char *shadow_neighbour(const void *p);
void shadow_copy_written(void *dst, const void *src, size_t n);
void shadow_async_write(EmuBlock *b, void *p, size_t n, Site at);
void shadow_async_read(const void *p, size_t n, int slot, uint32_t clk,
                       Site at); /* by the running thread, through the asynchronous proxy */

/* type_layout.c: "byte 4 of ring.scale": what lies at an offset of a shared object of a type; to be
 * freed; NULL: not known */
char *member_of(const Func *f, const char *type, size_t off);
char *
func_argument(const Func *f, int param,
              size_t off); /* "w (argument 3)": of the pointer there in a parameter; to be freed */

/* shared.c */
uint32_t shared_static_base(uint32_t dyn);
void shared_start(EmuBlock *b); /* poison in the static objects known so far */
bool shared_within(const Region *r, const char *p, size_t n);
void shared_span(EmuBlock *b,
                 const char *p); /* span_lo and span_n become those of the object at p */

/* vector_clock.c */
VC *vc_new(int n);
VC *vc_ref(VC *v);
void vc_drop(VC *v);
KnownClocks *known_ref(KnownClocks *k);
void known_drop(KnownClocks *k);
KnownClocks *known_join(KnownClocks *a, const KnownClocks *b); /* consumes a; b may be NULL */
KnownClocks *clock_publish(Thread *t); /* all t knows, t's own writes included; t's clock ticks */
void clock_acquire(Thread *t, const KnownClocks *k);
void clock_block_barrier(EmuBlock *b);
void clock_warp(EmuBlock *b, int warp, uint32_t lanes);
void clock_blocks(EmuBlock **b, int n); /* cluster or grid barrier */
bool clock_knows(const Thread *t, uint32_t buid, unsigned thread, uint32_t clk);
bool clock_met(const Thread *t, uint32_t buid); /* anything at all that the other block did */
void clock_start(Thread *t);
void clock_waited(Thread *t);      /* for what came before its kernel by programmatic edges */
void clock_leave(EmuBlock *b);     /* its threads are done: their kernel hands on what they heard */
bool clock_heard(const Thread *t); /* anything since its kernel began */
KnownClocks *known_keep(KnownClocks *k, bool (*keep)(uint32_t buid, const void *user),
                        const void *user); /* consumes k */
void clock_stop(Thread *t);
KnownClocks *clock_async(EmuBlock *b); /* what the block's asynchronous copies have done so far */
void clock_learn(Thread *t, int slot,
                 uint32_t clk); /* an asynchronous reader is known to be done */
void clock_proxy_fence(Thread *t, bool global);
bool clock_proxy_fenced(
    const Thread *t, const Thread *by, uint32_t clk,
    bool global); /* a fence of t follows what another thread of the cluster did then */

/* sync.c, mbarrier.c */
void sync_renumber(uint64_t seq); /* as op_forget, of all that was released */
void sync_reset(bool all); /* no kernel runs; what devices told each other stays, unless all goes */
void mbar_forget(EmuBlock *b);
bool mbar_inflight(const EmuBlock *b);
void mbar_stuck(const Thread *t,
                Site at); /* ends the kernel if it is an mbarrier that the thread polls for ever */
void mbar_leave(EmuBlock *b, Site at);                /* its last thread is leaving */
void mbar_late_arrive(Thread *t, void *bar, Site at); /* of a thread whose copies have landed */

/* tma.c: tiles of tensor maps; p is the dense image of a box in shared memory */
typedef struct TensorMap TensorMap;
const TensorMap *tensor_map_at(const void *p, int rank, Site at);
size_t tensor_box_bytes(const TensorMap *m);
void tensor_place(const TensorMap *m, const int *c, bool store,
                  Site at); /* ends the kernel where a GPU does, or writes beyond its tensor */
void tensor_touch(const TensorMap *m, const int *c, bool write, Site at);
uint64_t tensor_sum(const TensorMap *m, const int *c); /* of what a load would bring */
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

/* what tests look at, by dlsym */
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
void
copy_complete(Thread *t,
              const void *bar); /* the copies that some arrival of t at this barrier waits for */

extern __thread bool emu_in_host_fn; /* of cuLaunchHostFunc */
void emu_breathe(void);              /* device.c: other threads may call the driver for a moment */
int emu_contexts(void);              /* devices in use */
int emu_device(void);                /* of the calling thread's context; -1 */
bool emu_peers(int from, int to);    /* may kernels of one device touch the other's memory? */

/* timeline.c */
extern uint64_t timeline_base;
EmuOp *op_new(EmuOpKind kind, const char *name);
void op_add(EmuOp *op, const uint64_t *dep, int n_dep, const uint64_t *prog, int n_prog);
EmuOp *op_at(uint64_t seq); /* NULL: long done and known to the host */
bool op_done(uint64_t seq);
void timeline_run(const uint64_t *seq, int n); /* until these are done */
void timeline_run_all(void);
void timeline_run_device(void);                  /* all of the calling thread's device */
void timeline_some(void);                        /* now and then, some work goes on by itself */
void timeline_known(const uint64_t *seq, int n); /* the host has waited for these */
void timeline_known_all(int device);             /* of all that is done on it; -1: on all */
bool timeline_busy(int device);                  /* it has work that has not ended */
void timeline_drop(void);                        /* after an error: everything queued is gone */
bool op_before(uint64_t a, const EmuOp *b, bool waited);
void
op_learns(EmuOp *op,
          const OpSet *of); /* a thread of it has heard from one that was ordered after these */
void op_notified(const EmuOp *op, bool waited, OpSet *of); /* what a thread of it may tell */
void op_forget(OpSet *of, uint64_t seq);                   /* the number is another's from now on */
EmuOp *op_of_buid(uint32_t buid);
bool op_known(uint64_t seq); /* the host has waited for it; in fast mode: it is done */
const EmuOp *
timeline_uses(bool (*uses)(const EmuOp *op, const void *what),
              const void *what); /* one that is queued and that the host has not waited for */
int func_residency(const Func *f, int threads, uint32_t dyn);

#endif
