/* Internal interface of the emulated driver. Every call takes the one lock, is counted by name, may
 * be made to fail, and is refused after the context has failed (as in CUDA, until the context is
 * destroyed). */
#ifndef EMU_DRIVER_DRIVER_H
#define EMU_DRIVER_DRIVER_H

#include "../core/emu.h"
#include "../cuda_api.h"

#define API(name, args)                                                                            \
	EXPORT CUresult name args;                                                                 \
	EXPORT CUresult name args
enum { NEEDS_INIT = 1, NEEDS_CONTEXT = 2, UNSAFE_IN_CAPTURE = 4, ANYTIME = 8 };
typedef int Guard;

#define ENTER(name, needs)                                                                         \
	static int counter_ = -1;                                                                  \
	CUresult refused_ = CUDA_SUCCESS;                                                          \
	Guard guard_ __attribute__((cleanup(driver_leave), unused)) =                              \
	    driver_enter(&counter_, #name, needs, &refused_);                                      \
	if (refused_)                                                                              \
	return refused_

Guard driver_enter(int *counter, const char *name, int needs, CUresult *refused);
void driver_leave(Guard *g);

typedef struct {
	uint64_t *seq;
	int n, cap;
} Seqs;
typedef struct EmuNode EmuNode;
typedef struct Capture Capture;

struct CUctx_st {
	int device, ref;
	unsigned peers; /* peers: bit mask of devices whose memory its kernels may access */
};

struct CUmod_st {
	struct CUmod_st *next;
	void *so;
	Region *data;
	char *source;
	int refs;
	Func **fn;
	int n_fn;
	bool gone;
};

struct CUfunc_st {
	int unused;
}; /* handles are Func */

struct CUstream_st {
	struct CUstream_st *next;
	bool blocking;
	int device;
	Seqs tail;
	/* the last operation is this kernel, so a programmatic edge may start at it */
	uint64_t last_kernel;
	Capture *cap;
	EmuNode **cap_tail;
	int n_cap_tail;
};

struct CUevent_st {
	struct CUevent_st *next;
	bool timing, recorded;
	int device;
	double time;
	Seqs ops;
	Capture *cap; /* recorded in a capturing stream */
	EmuNode **node;
	int n_node;
};

struct EmuNode {
	int type;
	EmuOp *op; /* a template, never queued */
	EmuNode **dep, **prog;
	int n_dep, n_prog;
	int index;
	struct CUgraph_st *graph;
	bool joined; /* a later node or the end of the origin stream depends on it */
};

struct CUgraph_st {
	struct CUgraph_st *next;
	EmuNode **node;
	int n_node;
	bool capturing;
};

struct CUgraphExec_st {
	struct CUgraphExec_st *next;
	struct CUgraph_st *graph; /* own copy */
	struct CUgraph_st *origin;
	Seqs last;
};

struct Capture {
	CUstream origin;
	int mode;
	bool invalid;
	struct CUgraph_st *graph;
	unsigned long thread;
	struct Capture *next;
};

extern struct CUstream_st driver_null;
extern CUstream driver_streams;
extern CUevent driver_events;
extern Capture *driver_captures;

/* device.c */
extern __thread CUcontext driver_context;
int device_shared_optin(void);

/* memory.c */
bool memory_is_pinned(const void *p, size_t n);
bool memory_is_device(CUdeviceptr p, size_t n);
int memory_release_all(void); /* these return how much was still allocated */

/* module.c */
int module_release_all(void);
bool module_has_function(const Func *f);

/* stream.c */
CUresult stream_get(CUstream handle, CUstream *s);
CUresult
stream_add(CUstream s, EmuOp *op,
           bool programmatic); /* consumes op: queues it, or makes it a node of the capture */
CUresult stream_wait(CUstream s);
CUresult driver_sticky(void);
int stream_release_all(void);
void seqs_add(Seqs *s, uint64_t seq);
void seqs_join(Seqs *a, const Seqs *b);
void seqs_set(Seqs *s, uint64_t seq);

/* capture and graph.c */
CUresult capture_refuse(CUstream s,
                        CUresult code); /* a forbidden call, which invalidates the capture */
CUresult capture_refuse_global(const char *name);
EmuNode *graph_node(struct CUgraph_st *g, int type, EmuOp *op, EmuNode **dep, int n_dep,
                    EmuNode **prog, int n_prog);
int graph_release_all(void);
void op_template_free(EmuOp *op);
EmuOp *op_clone(const EmuOp *op);
struct CUgraph_st *graph_new(void);
void graph_free(struct CUgraph_st *g);

/* launch.c */
CUresult launch_make(Func *f, Dim grid, Dim block, Dim cluster, uint32_t dyn, bool cooperative,
                     void **params, void **extra, EmuOp **out);

#endif
