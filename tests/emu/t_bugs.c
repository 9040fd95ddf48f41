/* Mutation test of the emulator: every planted bug is found in checking mode, with a message that
 * names kernel, block, thread and source line; every correct twin passes in both modes with several
 * seeds. Each run is a process of its own. */
#include "host.h"

typedef struct {
	CUdeviceptr a, b, c;
	int n;
	CUdeviceptr u;
} Args;
typedef struct Case Case;
typedef CUresult (*Run)(const Case *c, CUmodule m, Args *a, bool bug);
struct Case {
	const char *file, *name;
	Run run;
	unsigned grid, block, dyn;
	int flags;
};
enum { N = 4096 };

static CUresult
finish(Args *a)
{
	float out[512];
	CUresult r = sync_all();
	return r ? r : down(out, a->c, sizeof out);
}

static CUresult
one(const Case *c, CUmodule m, Args *a, bool bug)
{
	(void)bug;
	CUresult r = launch(function(m, c->name), c->grid ? c->grid : 1, c->block ? c->block : 128,
	                    c->dyn, NULL, c->flags, a);
	return r ? r : finish(a);
}

/* Runs the kernel twice; the second launch sees the memory that the first one wrote. */
static CUresult
again(const Case *c, CUmodule m, Args *a, bool bug)
{
	CUresult r = one(c, m, a, bug);
	return r ? r : one(c, m, a, bug);
}

/* Runs produce and then the kernel of the case, both with programmatic edges. */
static CUresult
pair(const Case *c, CUmodule m, Args *a, bool bug)
{
	CUstream s = stream();
	CUresult r = launch(function(m, "produce"), 1, 128, 0, s, PDL, a);
	(void)bug;
	if (!r)
		r = launch(function(m, c->name), 1, 128, 0, s, PDL, a);
	return r ? r : finish(a);
}

static CUresult
triple(const Case *c, CUmodule m, Args *a, bool bug)
{
	CUstream s = stream();
	CUresult r = launch(function(m, "produce"), 1, 128, 0, s, PDL, a);
	(void)bug;
	if (!r)
		r = launch(function(m, "between"), 1, 128, 0, s, PDL, a);
	if (!r)
		r = launch(function(m, c->name), 1, 128, 0, s, PDL, a);
	return r ? r : finish(a);
}

static CUresult
held(const Case *c, CUmodule m, Args *a, bool bug)
{
	CUstream s = stream();
	CUresult r = launch(function(m, "produce"), 1, 128, 0, s, PDL, a);
	(void)bug;
	if (!r)
		r = launch(function(m, "hold"), 1, 128, 0, s, PDL, a);
	if (!r)
		r = launch(function(m, c->name), 1, 128, 0, s, PDL, a);
	return r ? r : finish(a);
}

/* Runs the kernel, and then six kernels that read the first 512 elements of a */
static CUresult
followed(const Case *c, CUmodule m, Args *a, bool bug)
{
	CUresult r = launch(function(m, c->name), 1, 128, 0, NULL, 0, a);

	(void)bug;
	for (int i = 0; i < 6 && !r; i++)
		r = launch(function(m, "reader"), 1, 128, 0, NULL, 0, a);
	return r ? r : finish(a);
}

static CUresult
streams(const Case *c, CUmodule m, Args *a, bool bug)
{
	CUstream s = stream(), t = stream();
	CUevent e;
	CUresult r;

	OK(CU(cuEventCreate, CUevent *, unsigned)(&e, 2));
	r = launch(function(m, "produce"), 1, 128, 0, s, 0, a);
	if (!r)
		r = CU(cuEventRecord, CUevent, CUstream)(e, s);
	if (!r && !bug)
		r = CU(cuStreamWaitEvent, CUstream, CUevent, unsigned)(t, e, 0);
	if (!r)
		r = launch(function(m, c->name), 1, 128, 0, t, 0, a);
	return r ? r : finish(a);
}

/* u holds a tensor map of c: 1024 floats in boxes of 128. */
static CUresult
mapped(const Case *c, CUmodule m, Args *a, bool bug)
{
	_Alignas(128) unsigned char map[128];
	const uint64_t dim[] = { 1024 };
	const unsigned box[] = { 128 }, step[] = { 1 };
	CUresult r = CU(cuTensorMapEncodeTiled, void *, int, unsigned, void *, const uint64_t *,
	                const uint64_t *, const unsigned *, const unsigned *, int, int, int,
	                int)(map, 7, 1, (void *)(uintptr_t)a->c, dim, dim, box, step, 0, 0, 0, 0);

	if (!r)
		r = up(a->u, map, sizeof map);
	return r ? r : one(c, m, a, bug);
}

/* Runs two kernels that use one scratch buffer, in one stream or in two. */
static CUresult
shared_scratch(const Case *c, CUmodule m, Args *a, bool bug)
{
	CUstream s = stream(), t = stream();
	Args second = *a;
	CUresult r = launch(function(m, c->name), 1, 128, 0, s, 0, a);

	second.n = a->n + 128;
	if (!r)
		r = launch(function(m, c->name), 1, 128, 0, bug ? t : s, 0, &second);
	return r ? r : finish(a);
}

static CUresult
output(const Case *c, CUmodule m, Args *a, bool bug)
{
	float out[128];
	CUresult r = launch(function(m, c->name), 1, 128, 0, NULL, 0, a);
	(void)bug;
	return r ? r : down(out, a->b, sizeof out);
}

static CUresult
freed(const Case *c, CUmodule m, Args *a, bool bug)
{
	if (bug)
		OK(CU(cuMemFree_v2, CUdeviceptr)(a->c));
	CUresult r = launch(function(m, c->name), 1, 128, 0, NULL, 0, a);
	return r ? r : sync_all();
}

static CUresult
capture(const Case *c, CUmodule m, Args *a, bool bug)
{
	CUstream s = stream();
	CUgraph g = NULL;
	CUdeviceptr p;
	CUresult r, end;

	(void)c;
	OK(CU(cuStreamBeginCapture_v2, CUstream, int)(s, 0));
	r = launch(function(m, "produce"), 1, 128, 0, s, 0, a);
	if (!r && bug)
		r = CU(cuMemAlloc_v2, CUdeviceptr *, size_t)(&p, 64);
	end = CU(cuStreamEndCapture, CUstream, CUgraph *)(s, &g);
	CHECK(end == (bug ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS));
	if (bug)
		CHECK(r == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	return r;
}

static CUresult
synchronise(const Case *c, CUmodule m, Args *a, bool bug)
{
	CUstream s = stream(), t = stream();
	CUevent e;
	CUgraph g = NULL;
	CUresult r;

	(void)c;
	OK(CU(cuEventCreate, CUevent *, unsigned)(&e, 2));
	OK(CU(cuStreamBeginCapture_v2, CUstream, int)(s, 0));
	r = launch(function(m, "produce"), 1, 128, 0, s, 0, a);
	if (bug) {
		CHECK(CU(cuStreamSynchronize, CUstream)(s) ==
		      CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
		CHECK(CU(cuStreamEndCapture, CUstream, CUgraph *)(s, &g) ==
		      CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
		/* The captured work forks to another stream and never joins the first one. */
		OK(CU(cuStreamBeginCapture_v2, CUstream, int)(s, 0));
		OK(CU(cuEventRecord, CUevent, CUstream)(e, s));
		OK(CU(cuStreamWaitEvent, CUstream, CUevent, unsigned)(t, e, 0));
		OK(launch(function(m, "produce"), 1, 128, 0, t, 0, a));
		CHECK(CU(cuCtxSynchronize, void)() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
		CU(cuStreamEndCapture, CUstream, CUgraph *)(s, &g);
		OK(CU(cuStreamBeginCapture_v2, CUstream, int)(s, 0));
		OK(CU(cuEventRecord, CUevent, CUstream)(e, s));
		OK(CU(cuStreamWaitEvent, CUstream, CUevent, unsigned)(t, e, 0));
		OK(launch(function(m, "produce"), 1, 128, 0, t, 0, a));
		return CU(cuStreamEndCapture, CUstream, CUgraph *)(s, &g);
	}
	return r ? r : CU(cuStreamEndCapture, CUstream, CUgraph *)(s, &g);
}

static CUresult
cooperative(const Case *c, CUmodule m, Args *a, bool bug)
{
	(void)c;
	CUresult r = launch(function(m, "produce"), bug ? 1000 : 1, 128, 0, NULL, COOPERATIVE, a);
	if (bug)
		CHECK(r == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
	return r;
}

static CUresult
architecture(const Case *c, CUmodule m, Args *a, bool bug)
{
	char *log, *image = compile("extern \"C\" __global__ void k() {}", "k.cu",
	                            bug ? "sm_80" : "sm_90a", NULL, &log);
	CUresult r = CU(cuModuleLoadData, CUmodule *, const void *)(&m, image);

	(void)c, (void)a;
	if (bug)
		CHECK(r == CUDA_ERROR_NO_BINARY_FOR_GPU);
	return r;
}

static CUresult
damaged(const Case *c, CUmodule m, Args *a, bool bug)
{
	char *log,
	    *image = compile("extern \"C\" __global__ void k() {}", "k.cu", "sm_90a", NULL, &log);

	(void)c, (void)a;
	image[100] ^= (char)bug;
	return CU(cuModuleLoadData, CUmodule *, const void *)(&m, image);
}

/* A sum that starts with an uninitialised register does not compile. */
static CUresult
uninitialised(const Case *c, CUmodule m, Args *a, bool bug)
{
	static const char right[] = "extern \"C\" __global__ void k(float *p) {\n float s = 0;\n "
	                            "for (int i = 0; i < 4; i++)\n  s += p[i];\n *p = s; }";
	static const char wrong[] = "extern \"C\" __global__ void k(float *p) {\n float s;\n for "
	                            "(int i = 0; i < 4; i++)\n  s += p[i];\n *p = s; }";
	char *log;

	(void)c, (void)m, (void)a;
	if (compile(bug ? wrong : right, "sum.cu", "sm_90a", NULL, &log))
		return CUDA_SUCCESS;
	CHECK(strstr(log, "sum.cu:4:") && strstr(log, "'s' is uninitialized"));
	return CUDA_ERROR_INVALID_SOURCE;
}

#define B "block.cu"
#define M "memory.cu"
#define O "order.cu"
#define S "sm90.cu"
#define W "persistent.cu"
#define C "cluster.cu"
#define T "threads.cu"
#define P "stages.cu"
#define K "blocks.cu"
#define X "proxies.cu"
#define R "right.cu"
#define L "prefetch.cu"
static const Case cases[] = {
	{ B, "missing_barrier", one },
	{ B, "divergent_barrier", one },
	{ B, "divergent_places", one },
	{ B, "reuse_barrier", one },
	{ B, "missing_syncwarp", one },
	{ B, "inactive_lane", one, 1, 32 },
	{ B, "full_mask", one, 1, 32 },
	{ B, "named_count", one },
	{ B, "mbarrier_race", one },
	{ B, "empty_wait", one },
	{ M, "read_beyond", one, 4 },
	{ M, "write_beyond", one, 4 },
	{ M, "far_write", one },
	{ M, "shared_beyond", one, 1, 127 },
	{ M, "arena_beyond", one, 1, 128, 512 },
	{ M, "array_overrun", one },
	{ M, "misaligned", one },
	{ M, "misaligned_plain", one },
	{ M, "misaligned_store", one },
	{ M, "misaligned_array", one },
	{ M, "reads_unwritten", one },
	{ M, "null_pointer", one },
	{ M, "other_stack", one },
	{ M, "division", one },
	{ M, "unwritten", output },
	{ M, "after_free", freed },
	{ O, "copy_wait", one },
	{ O, "one_warp_waits", one },
	{ O, "ring_tail", one },
	{ O, "no_wait", pair },
	{ O, "warp_wait", pair },
	{ O, "early_write", pair },
	{ O, "overlap", triple },
	{ O, "early_read", held },
	{ O, "two_streams", streams },
	{ O, "scratch", shared_scratch },
	{ O, "flag", one, 2, 32, 0, COOPERATIVE },
	{ O, "flag_scope", one, 2, 32, 0, COOPERATIVE },
	{ O, "last_block", one, 4 },
	{ O, "grid_race", one, 4, 128, 0, COOPERATIVE },
	{ O, "cluster_exit", one, 2, 128, 0, CLUSTER2 },
	{ O, "capture", capture },
	{ O, "synchronise", synchronise },
	{ O, "cooperative", cooperative },
	{ O, "architecture", architecture },
	{ O, "damaged", damaged },
	{ O, "uninitialised", uninitialised },
	{ S, "wgmma_no_wait", one, 1, 128, 16384 },
	{ S, "wgmma_wait_one", one, 1, 128, 16384 },
	{ S, "wgmma_no_fence", one, 1, 128, 16384 },
	{ S, "wgmma_no_proxy_fence", one, 1, 128, 16384 },
	{ S, "wgmma_reuse", one, 1, 128, 16384 },
	{ S, "wgmma_registers", one, 1, 128, 16384 },
	{ S, "wgmma_registers_in_turns", one, 1, 128, 16384 },
	{ S, "wgmma_three_warps", one, 1, 128, 16384 },
	{ S, "wgmma_disagree", one, 1, 128, 16384 },
	{ S, "wgmma_swizzle", one, 1, 128, 16384 },
	{ S, "wgmma_beyond", one, 1, 128, 16384 },
	{ S, "wgmma_leave", one, 1, 128, 16384 },
	{ S, "ring_refill", one, 1, 160, 16384 },
	{ S, "bulk_not_waited", one },
	{ S, "copy_arrive", one },
	{ S, "store_no_proxy_fence", one },
	{ S, "store_reuse", one },
	{ S, "store_leave", one },
	{ S, "too_many_registers", one, 1, 384 },
	{ C, "cluster_init", one, 4, 64, 0, CLUSTER2 },
	{ C, "cluster_leave", one, 4, 64, 0, CLUSTER2 },
	{ C, "cluster_own", one, 4, 64, 0, CLUSTER2 },
	{ C, "cluster_mask", one, 4, 64, 0, CLUSTER2 },
	{ C, "cluster_beyond", one, 4, 64, 0, CLUSTER2 },
	{ C, "cluster_bytes", one, 4, 64, 0, CLUSTER2 },
	{ C, "cluster_late", one, 4, 64, 0, CLUSTER2 },
	{ T, "reduce_twice", one },
	{ T, "reduce_broadcast", one },
	{ T, "reduce_warps", one, 1, 256 },
	{ T, "reduce_few", one },
	{ T, "half_warp_sum", one },
	{ T, "half_warp_block", one, 1, 48 },
	{ T, "mask_without_me", one, 1, 32 },
	{ T, "two_shuffles", one, 1, 32 },
	{ T, "other_half", one },
	{ T, "syncwarp_mask", one, 1, 32 },
	{ T, "syncwarp_block", one },
	{ T, "barrier_in_loop", one },
	{ T, "early_return", one },
	{ T, "arrive_and_read", one },
	{ T, "named_disagree", one },
	{ T, "named_odd", one },
	{ T, "named_zero", one },
	{ T, "named_overrun", one },
	{ T, "counter_zero", one },
	{ T, "counter_read", one },
	{ T, "counter_never", one },
	{ T, "plain_sum", one },
	{ T, "volatile_flag", one },
	{ T, "bytes", one },
	{ T, "odd_columns", one },
	{ T, "before_first", one },
	{ T, "wide_offset", one },
	{ T, "wide_shift", one },
	{ T, "wild_index", one },
	{ T, "register_index", one },
	{ T, "arena_overlap", one, 1, 128, 1024 },
	{ T, "arena_small", one, 1, 128, 512 },
	{ T, "const_path", one },
	{ T, "const_written", one },
	{ T, "masked_rows", one },
	{ T, "local_by_shuffle", one, 1, 32 },
	{ T, "ldmatrix_half", one, 1, 32 },
	{ T, "ldmatrix_row", one, 1, 32 },
	{ T, "ldmatrix_race", one, 1, 32 },
	{ T, "mma_in_branch", one, 1, 32 },
	{ P, "group_tail", one },
	{ P, "no_commit", one },
	{ P, "wait_no_barrier", one },
	{ P, "copy_misaligned", one },
	{ P, "copy_beyond", one },
	{ P, "copy_source", one },
	{ P, "copy_target", one },
	{ P, "ring_parity", one, 1, 160 },
	{ P, "ring_empty_parity", one, 1, 160 },
	{ P, "ring_full_count", one, 1, 160 },
	{ P, "ring_empty_count", one, 1, 160 },
	{ P, "ring_few_release", one, 1, 160 },
	{ P, "ring_elected", one, 1, 160 },
	{ P, "ring_bytes_few", one, 1, 160 },
	{ P, "ring_bytes_many", one, 1, 160 },
	{ P, "ring_no_empty", one, 1, 160 },
	{ P, "ring_early", one, 1, 160 },
	{ P, "ring_one_lane", one, 1, 160 },
	{ P, "ring_ignored", one, 1, 160 },
	{ P, "two_tiles", one },
	{ P, "init_again", one },
	{ P, "init_twice", one },
	{ P, "over_barrier", one, 1, 128, 1024 },
	{ P, "init_late", one },
	{ P, "bulk_odd", one },
	{ P, "bulk_beyond", one },
	{ P, "bulk_short", one },
	{ P, "bulk_source", one },
	{ P, "store_read_back", one },
	{ P, "store_no_commit", one },
	{ P, "ring_again", one },
	{ P, "fence_before", one },
	{ K, "combine_early", one, 4 },
	{ K, "count_early", one, 4 },
	{ K, "count_scope", one, 4 },
	{ K, "atomic_scope", one, 2 },
	{ K, "relaxed_flag", one, 2, 128, 0, COOPERATIVE },
	{ K, "flag_others", one, 2, 128, 0, COOPERATIVE },
	{ K, "plain_flag", one, 2, 128, 0, COOPERATIVE },
	{ K, "unlock", one, 2, 32, 0, COOPERATIVE },
	{ K, "tiles_overlap", one, 4 },
	{ K, "in_place", one, 4 },
	{ K, "norm_for_all", one, 4 },
	{ K, "append_and_read", one, 4, 32 },
	{ K, "grid_one_thread", one, 2, 128, 0, COOPERATIVE },
	{ K, "grid_plain", one, 2 },
	{ K, "shared_pointer", one, 2, 128, 0, COOPERATIVE },
	{ K, "peer_early", one, 2, 128, 0, CLUSTER2 },
	{ K, "peer_leave", one, 2, 128, 0, CLUSTER2 },
	{ K, "peer_barrier", one, 2, 128, 0, CLUSTER2 },
	{ K, "peer_range", one, 2, 128, 0, CLUSTER2 },
	{ K, "peer_no_wait", one, 2, 128, 0, CLUSTER2 },
	{ K, "peer_half", one, 2, 128, 0, CLUSTER2 },
	{ K, "scope_cluster", one, 4, 128, 0, CLUSTER2 | COOPERATIVE },
	{ K, "depend_copy", pair },
	{ K, "depend_branch", pair },
	{ K, "depend_store", pair },
	{ X, "load_over_writes", one },
	{ X, "load_over_one", one },
	{ X, "load_over_reads", one },
	{ X, "fence_early", one, 1, 160 },
	{ X, "fence_elsewhere", one },
	{ X, "multicast_over_reads", one, 2, 128, 1024, CLUSTER2 },
	{ X, "store_over_writes", one },
	{ X, "store_over_reads", one },
	{ X, "load_of_writes", one },
	{ X, "box_over_reads", mapped },
	{ X, "box_over_writes", mapped },
	{ L, "prefetch_beyond", one },
	{ L, "prefetch_bulk_beyond", one },
	{ L, "prefetch_bulk_odd", one },
	{ L, "prefetch_shared", one },
	{ L, "prefetch_wrong", followed },
	{ L, "prefetch_too_much", followed },
	{ W, "step_no_wait", one, 4, 128, 0, COOPERATIVE },
	{ W, "step_count", one, 4, 128, 0, COOPERATIVE },
	{ W, "step_order", one, 4, 128, 0, COOPERATIVE },
	{ W, "step_reuse", one, 4, 128, 0, COOPERATIVE },
	{ W, "step_one_waits", one, 4, 128, 0, COOPERATIVE },
	{ W, "step_early", one, 4, 128, 0, COOPERATIVE },
	{ W, "step_relaxed_add", one, 4, 128, 0, COOPERATIVE },
	{ W, "step_relaxed_poll", one, 4, 128, 0, COOPERATIVE },
	{ W, "step_wrap", one, 4, 128, 0, COOPERATIVE },
	{ W, "step_base", again, 4, 128, 0, COOPERATIVE },
	{ W, "step_first_base", one, 4, 128, 0, COOPERATIVE },
	{ W, "step_slot", one, 4, 128, 0, COOPERATIVE },
	{ W, "step_copy", one, 4, 128, 0, COOPERATIVE },
	{ W, "step_ring", one, 4, 128, 0, COOPERATIVE },
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* Correct kernels that have no wrong twin */
static const Case right[] = {
	{ R, "broadcast", one, 4, 128, 0, COOPERATIVE },
	{ R, "fences", one, 2, 128, 0, COOPERATIVE },
	{ R, "splits", again, 4 },
	{ R, "lock", one, 4 },
	{ R, "tickets", one, 4, 128, 0, COOPERATIVE },
	{ R, "histogram", one, 4 },
	{ R, "masks", one },
	{ R, "named", one },
	{ R, "bytes", one },
	{ R, "three_stages", one },
	{ R, "ring", one, 1, 160 },
	{ R, "store_twice", one },
	{ R, "exchange", one, 2, 128, 0, CLUSTER2 },
	{ R, "rounds", one, 4, 128, 0, COOPERATIVE },
	{ R, "depend", pair },
	{ R, "numbers", one },
};
enum { N_RIGHT = sizeof right / sizeof *right };

/* Returns whether a kernel's finding names kernel, block, thread and one of the lines marked with
 * its name. */
static bool
names_all(const Case *c, const char *text, const char *source)
{
	char mark[128], want[128];
	const char *p = source;
	int line = 1;

	if (!strstr(text, "kernel '") || !strstr(text, "block (") || !strstr(text, "thread ("))
		return false;
	/* the message also names the line of the other access; all kernels are in one file */
	const char *other = strstr(text, "; the other: ");
	snprintf(mark, sizeof mark, "), %s:", c->file);
	snprintf(want, sizeof want, "copy, %s:", c->file);
	if (other && strstr(other, "block (") && !strstr(other, mark) && !strstr(other, want))
		return false;
	if (strstr(text, "of the shared arena") && !strstr(source, "SHARED_BYTES"))
		return false;
	for (; *p; line++) {
		const char *end = strchr(p, '\n');
		const char *comment = strstr(p, "// ");
		size_t n = end ? (size_t)(end - p) : strlen(p);
		if (comment && comment < p + n && line > 1) {
			snprintf(mark, sizeof mark, "%.*s ", (int)(p + n - comment - 3),
			         comment + 3);
			char name[64];
			snprintf(name, sizeof name, "%s ", c->name);
			snprintf(want, sizeof want, "%s:%d:", c->file, line);
			if (strstr(mark, name) && strstr(text, want))
				return true;
		}
		if (!end)
			break;
		p = end + 1;
	}
	return false;
}

static int
child(const Case *c, bool bug, bool check, int seed)
{
	char path[256], number[16];
	Args a;
	static float data[N];

	snprintf(number, sizeof number, "%d", seed);
	setenv("LLMC_EMU_MODE", check ? "check" : "fast", 1);
	setenv("LLMC_EMU_SEED", number, 1);
	if (!getenv("EMU_VERBOSE"))
		setenv("LLMC_EMU_QUIET", "1", 1);
	libs_open();
	device_open();
	snprintf(path, sizeof path, "tests/emu/bugs/%s", c->file);
	char *source = read_text(path), *log,
	     *image = compile(source, c->file, "sm_90a", bug ? "-DBUG=1" : "-DBUG=0", &log);
	CUmodule m = NULL;
	if (!image) {
		fprintf(stderr, "%s", log);
		return 2;
	}
	OK(CU(cuModuleLoadData, CUmodule *, const void *)(&m, image));
	a = (Args){ device(N * 4), device(N * 4), device(N * 4), 512, device(4096) };
	if (c->run != output) /* all memory is initialised, so that only the planted bug is found */
		OK(up(a.b, data, sizeof data));
	OK(up(a.a, data, sizeof data));
	OK(up(a.c, data, sizeof data));
	OK(up(a.u, data, 4096));
	CUresult r = c->run(c, m, &a, bug);
	if (!bug && (r || failures)) {
		fprintf(stderr, "%s: the right twin failed in %s mode with seed %d: %d, %s\n",
		        c->name, check ? "checking" : "fast", seed, r, report());
		return 1;
	}
	if (bug && !check)
		return r ? 10 : 0; /* 10: the check finds the bug without shadow memory too */
	if (bug) {
		bool kernel = c->run == one || c->run == pair || c->run == triple ||
		              c->run == streams || c->run == shared_scratch || c->run == freed ||
		              c->run == mapped;
		if (!r || failures ||
		    (!*report() && c->run != synchronise && c->run != uninitialised) ||
		    (kernel && !names_all(c, report(), source))) {
			fprintf(
			    stderr,
			    "%s: planted bug not found as it should be with seed %d: %d, \"%s\"\n",
			    c->name, seed, r, report());
			return 1;
		}
		if (getenv("EMU_SHOW"))
			printf("%s: %s\n", c->name, report());
	}
	return 0;
}

static int
spawn(const Case *c, bool bug, bool check, int seed)
{
	int status;
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		int rc = child(c, bug, check, seed);
		fflush(NULL);
		_exit(rc);
	}
	waitpid(pid, &status, 0);
	if (WIFSIGNALED(status))
		fprintf(stderr, "%s: signal %d\n", c->name, WTERMSIG(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

int
main(int argc, char **argv)
{
	int bad = 0, found = 0, fast = 0, seeds = argc > 2 ? atoi(argv[2]) : 4;

	for (int i = 0; i < N_CASES; i++) {
		const Case *c = &cases[i];
		if (argc > 1 && *argv[1] && strcmp(argv[1], c->name))
			continue;
		int seen = 0, missed = 0;
		for (int s = 0; s < seeds; s++) {
			/* the check must find the bug with every schedule */
			missed += spawn(c, true, true, s) != 0;
			if (s & 1)
				continue;
			bad += spawn(c, false, true, s) != 0;
			bad += spawn(c, false, false, s) != 0;
			seen |= spawn(c, true, false, s) == 10;
		}
		fast += seen;
		bad += missed;
		found += !missed;
	}
	for (int i = 0; i < N_RIGHT; i++)
		for (int s = 0;
		     s < 2 * seeds && (argc < 2 || !*argv[1] || !strcmp(argv[1], right[i].name));
		     s++) {
			bad += spawn(&right[i], false, true, s) != 0;
			bad += spawn(&right[i], false, false, s) != 0;
		}
	printf(
	    "planted bugs: %d found of %d in checking mode, %d by fast mode's return codes alone\n",
	    found, N_CASES, fast);
	return bad != 0;
}
