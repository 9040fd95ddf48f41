/* Internal interface of the emulated driver. Every call takes the one lock, is counted by name, and
 * can be made to fail. After the context has failed, every call is refused until the context is
 * destroyed, as in CUDA. */
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
	/* the last operation of the stream, if it is a kernel: a programmatic edge may start at
	 * it */
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
	Capture *cap; /* capture that recorded the event, if its stream was capturing */
	EmuNode **node;
	int n_node;
};

struct EmuNode {
	int type;
	EmuOp *op; /* operation to copy at each launch, never queued itself */
	EmuNode **dep, **prog;
	int n_dep, n_prog;
	int index;
	struct CUgraph_st *graph;
	bool joined; /* a later node, or the end of the origin stream, depends on this node */
};

struct CUgraph_st {
	struct CUgraph_st *next;
	EmuNode **node;
	int n_node;
	bool capturing;
};

struct CUgraphExec_st {
	struct CUgraphExec_st *next;
	struct CUgraph_st *graph; /* copy that belongs to the executable graph */
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
int memory_release_all(void); /* these functions return how many objects were still allocated */

/* module.c */
int module_release_all(void);
bool module_has_function(const Func *f);

/* stream.c */
CUresult stream_get(CUstream handle, CUstream *s);
CUresult
stream_add(CUstream s, EmuOp *op,
           bool programmatic); /* consumes op: queues it, or adds it to the capture as a node */
CUresult stream_wait(CUstream s);
CUresult driver_sticky(void);
int stream_release_all(void);
void seqs_add(Seqs *s, uint64_t seq);
void seqs_join(Seqs *a, const Seqs *b);
void seqs_set(Seqs *s, uint64_t seq);

/* capture and graph.c */
CUresult capture_refuse(
    CUstream s,
    CUresult code); /* a call that is forbidden during capture, and that invalidates the capture */
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
