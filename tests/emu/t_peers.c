/* Devices that write to each other's memory, with one thread of the program per device. A correct
 * all-reduce has no finding and is bit-identical with every seed. Each planted mistake is found in
 * checking mode, or changes the bits. Covers one-shot and two-shot all-reduce and the kernels that
 * ranks run. Each run is a process of its own. */
#include "host.h"

#include "templates/cuda/comm/comm.h"

#include <pthread.h>
#include <sys/mman.h>

enum { MOST = 8, N = 256, ROUNDS = 5 };
enum {
	RIGHT,
	STALE_FLAG,
	NO_RELEASE,
	DEVICE_SCOPE,
	ARRIVAL_ORDER,
	EARLY_READ,
	ONE_SLOT,
	DEVICE_WAIT,
	LONG,
	LAST_UNHEARD,
	SKIPPED,
	DISAGREES,
	NO_ACCESS,
	LATE,
	TWO,
	TWO_STALE_FLAG,
	TWO_NO_RELEASE,
	TWO_ARRIVAL_ORDER,
	TWO_EARLY_READ,
	TWO_ONE_SLOT,
	KERNELS,
	N_KIND
};
typedef struct {
	int rank, ranks;
	unsigned round, pieces;
	CUdeviceptr flag[MOST], slot[MOST];
	CUdeviceptr x, y;
} Args;

/* a part of the finding; "": nothing is found, but the sums are wrong */
static const struct {
	const char *name, *want;
	int two;
} kinds[N_KIND] = {
	[RIGHT] = { "RIGHT", NULL },
	[LONG] = { "LONG", NULL },
	[LATE] = { "LATE", NULL },
	[ARRIVAL_ORDER] = { "ARRIVAL_ORDER", "" },
	[STALE_FLAG] = { "STALE_FLAG", "race: " },
	[NO_RELEASE] = { "NO_RELEASE", "race: " },
	[DEVICE_SCOPE] = { "DEVICE_SCOPE",
	                   "an atomic without the system's scope on memory of another device" },
	[DEVICE_WAIT] = { "DEVICE_WAIT", "race: two atomics" },
	[LAST_UNHEARD] = { "LAST_UNHEARD", "race: " },
	[EARLY_READ] = { "EARLY_READ", "race: " },
	[ONE_SLOT] = { "ONE_SLOT", "race: " },
	[SKIPPED] = { "SKIPPED", "nothing is queued on device 1" },
	[DISAGREES] = { "DISAGREES", "race: " },
	[NO_ACCESS] = { "NO_ACCESS", "without peer access" },
	/* two-shot algorithm with one of the mistakes above */
	[TWO] = { "TWO", NULL, RIGHT },
	[TWO_STALE_FLAG] = { "TWO_STALE_FLAG", "race: ", STALE_FLAG },
	[TWO_NO_RELEASE] = { "TWO_NO_RELEASE", "race: ", NO_RELEASE },
	[TWO_ARRIVAL_ORDER] = { "TWO_ARRIVAL_ORDER", "", ARRIVAL_ORDER },
	[TWO_EARLY_READ] = { "TWO_EARLY_READ", "race: ", EARLY_READ },
	[TWO_ONE_SLOT] = { "TWO_ONE_SLOT", "race: ", ONE_SLOT },
	[KERNELS] = { "KERNELS", NULL },
};

typedef struct Rank {
	pthread_t thread;
	int number, kind;
	CUcontext ctx;
	CUdeviceptr flag, slot, x, y;
	CUresult r;
} Rank;
static Rank rank[MOST];
static int ranks;
static pthread_barrier_t all;

static void *
run(void *arg)
{
	Rank *me = arg;
	char define[32];
	float zero[2 * MOST * N] = { 0 }, x[ROUNDS][N];
	int bug = me->kind < SKIPPED ? me->kind : me->kind >= TWO ? kinds[me->kind].two : RIGHT;

	OK(CU(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&me->ctx, me->number));
	OK(CU(cuCtxSetCurrent, CUcontext)(me->ctx));
	snprintf(define, sizeof define, "-DBUG=%d", bug);
	CUmodule m = module("tests/emu/bugs/peers.cu", define);
	me->flag = device(MOST * 4), me->slot = device(sizeof zero), me->x = device(sizeof x),
	me->y = device(sizeof *x);
	OK(up(me->flag, zero, MOST * 4));
	OK(up(me->y, zero, sizeof *x));
	if (bug == EARLY_READ || bug == STALE_FLAG)
		OK(up(me->slot, zero, sizeof zero));
	for (int r = 0; r < ROUNDS; r++)
		for (int i = 0; i < N; i++)
			x[r][i] = (float)(me->number * 7 + i + r) *
			          (me->number & 1 ? 0.37f : -1234.5f) / 3;
	OK(up(me->x, x, sizeof x));
	CUstream s = stream();
	CUfunction f = function(m, me->kind >= TWO ? "two" : "sum");
	pthread_barrier_wait(&all);
	for (int k = 0; k < ranks; k++)
		if (k != me->number && me->kind != NO_ACCESS)
			OK(CU(cuCtxEnablePeerAccess, CUcontext, unsigned)(rank[k].ctx, 0));
	pthread_barrier_wait(&all);
	Args a = { .rank = me->number, .ranks = ranks, .y = me->y };
	for (int k = 0; k < ranks; k++)
		a.flag[k] = rank[k].flag, a.slot[k] = rank[k].slot;
	/* A launch has two chunks: the next launch relies on data that a kernel acquired from a
	 * kernel that is still running. */
	const int pieces = me->kind == LONG || me->kind == LAST_UNHEARD || me->kind == TWO ? 2 : 1;
	for (int r = 0; r < ROUNDS && !me->r; r += pieces) {
		a.round = (unsigned)r + 1;
		a.pieces = (unsigned)(ROUNDS - r < pieces ? ROUNDS - r : pieces);
		a.x = me->x + (CUdeviceptr)r * sizeof *x;
		if (me->kind == LATE && me->number == 1)
			for (volatile int i = 0; i < 20000000; i++)
				;
		if (me->number == 1 &&
		    ((me->kind == SKIPPED && r == ROUNDS - 1) || (me->kind == DISAGREES && r == 2)))
			continue;
		me->r = launch(f, 1, N, 0, s, 0, &a);
	}
	/* All threads queue their work before any of them waits. A wait that returns too early is
	 * then not due to a slow thread. */
	if (me->kind != LATE)
		pthread_barrier_wait(&all);
	if (!me->r)
		me->r = CU(cuStreamSynchronize, CUstream)(s);
	return NULL;
}

/* ---- kernels of ranks, alternating one-shot and two-shot; expected values come from a loop over
 * the ranks ---- */

enum { WIDTH = 577, LARGE = 401, RUNS = 6 };

static float
term(int r, long long i)
{
	return (float)((i * 7 + r * 13) % 1001 - 500) * (r & 1 ? 0.37f : -1234.5f) / 3;
}

static void *
run_kernels(void *arg)
{
	Rank *me = arg;
	const int large = me->kind, n = ranks; /* rows of the largest message */
	const size_t most = (size_t)large * WIDTH,
	             slots = 2 * (size_t)n * LLMC_LANES * LLMC_CHUNK * sizeof(float);
	float *x = malloc(most * sizeof *x), *y = malloc(most * sizeof *y);
	unsigned zero[LLMC_PEERS * LLMC_LANES] = { 0 };
	void *word;

	OK(CU(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&me->ctx, me->number));
	OK(CU(cuCtxSetCurrent, CUcontext)(me->ctx));
	CUmodule m = module("templates/cuda/runtime/collective.cu", NULL);
	const CUfunction way[2] = { function(m, "llmc_all_reduce"),
		                    function(m, "llmc_all_reduce_two_shot") };
	CUdeviceptr peers = device(sizeof(llmc_peers)), rows = device(sizeof(int)),
	            epoch = device(sizeof zero), b = device(2 * WIDTH * sizeof(float)),
	            r = device(most * sizeof *x);
	me->flag = device(sizeof zero), me->slot = device(slots), me->x = device(most * sizeof *x),
	me->y = device(most * sizeof *y);
	OK(CU(cuMemHostAlloc, void **, size_t, unsigned)(&word, 4096, 3));
	memset(word, 0, 4096);
	OK(up(me->flag, zero, sizeof zero));
	OK(up(epoch, zero, sizeof zero));
	for (size_t i = 0; i < most; i++)
		x[i] = term(me->number, (long long)i), y[i] = term(9, (long long)i);
	OK(up(me->x, x, most * sizeof *x));
	OK(up(r, y, most * sizeof *y));
	OK(up(b, y, 2 * WIDTH * sizeof *y));
	pthread_barrier_wait(&all);
	llmc_peers p = { .rank = me->number,
		         .ranks = n,
		         .epoch = (unsigned *)(uintptr_t)epoch,
		         .end = word,
		         .late = (unsigned *)word + 16 };
	for (int k = 0; k < n; k++) {
		if (k != me->number)
			OK(CU(cuCtxEnablePeerAccess, CUcontext, unsigned)(rank[k].ctx, 0));
		p.flag[k] = (unsigned *)(uintptr_t)rank[k].flag;
		p.slot[k] = (float *)(uintptr_t)rank[k].slot;
	}
	OK(up(peers, &p, sizeof p));
	CUstream s = stream();
	pthread_barrier_wait(&all);
	for (int run = 0; run < RUNS; run++) {
		/* both algorithms get the largest message */
		const int of = run == 2 || run == 3 ? large : 1 + run;
		const long long count = (long long)of * WIDTH;
		OK(up(rows, &of, sizeof of));
		llmc_collective c = {
			.peers = (const llmc_peers *)(uintptr_t)peers,
			.rows = (const int *)(uintptr_t)rows,
			.x = (const float *)(uintptr_t)me->x,
			.y = (float *)(uintptr_t)me->y,
			.r = (const float *)(uintptr_t)r,
			.b = (const float *)(uintptr_t)b,
			.b2 =
			    run & 2 ? (const float *)(uintptr_t)(b + WIDTH * sizeof(float)) : NULL,
			.scale = 1,
			.width = WIDTH
		};
		OK(launch(way[run & 1], LLMC_LANES, LLMC_LANE_THREADS, 0, s, COOPERATIVE, &c));
		OK(CU(cuStreamSynchronize, CUstream)(s));
		OK(down(y, me->y, (size_t)count * sizeof *y));
		for (long long i = 0; i < count && !me->r; i++) {
			float want = term(0, i);
			for (int k = 1; k < n; k++)
				want += term(k, i);
			want += term(9, i % WIDTH);
			if (run & 2)
				want += term(9, WIDTH + i % WIDTH);
			want += term(9, i);
			if (memcmp(&y[i], &want, sizeof want)) {
				fprintf(stderr,
				        "KERNELS: rank %d of %d, %d rows, %s: element %lld is %a, "
				        "not %a\n",
				        me->number, n, of, run & 1 ? "two steps" : "one step", i,
				        (double)y[i], (double)want);
				me->r = 1;
			}
		}
		pthread_barrier_wait(&all); /* all ranks change their sizes together */
	}
	free(x);
	free(y);
	return NULL;
}

/* Returns the exit code: 0: as expected; 1: not as expected; 2 (ARRIVAL_ORDER): the bits differ. */
static int
child(int kind, int seed, bool check, float *want)
{
	char text[16];

	setenv("LLMC_EMU_MODE", check ? "check" : "fast", 1);
	snprintf(text, sizeof text, "%d", seed);
	setenv("LLMC_EMU_SEED", text, 1);
	snprintf(text, sizeof text, "%d", ranks);
	setenv("LLMC_EMU_DEVICES", text, 1);
	setenv("LLMC_EMU_QUIET", "1", 1);
	if (kind == SKIPPED) /* this wait never ends */
		setenv("LLMC_EMU_PATIENCE", "200", 1);
	libs_open();
	OK(CU(cuInit, unsigned)(0));
	pthread_barrier_init(&all, NULL, (unsigned)ranks);
	for (int k = 0; k < ranks; k++) {
		rank[k].number = k;
		rank[k].kind = kind == KERNELS ? seed == 0 && check ? LARGE : RUNS : kind;
		pthread_create(&rank[k].thread, NULL, kind == KERNELS ? run_kernels : run,
		               &rank[k]);
	}
	for (int k = 0; k < ranks; k++)
		pthread_join(rank[k].thread, NULL);
	bool found = kinds[kind].want && *kinds[kind].want && strstr(report(), kinds[kind].want);
	/* A device that waits for this round and sees the flag of the next round is ordered after
	 * everything that was read. Then only the sums show that the device skipped a rank. */
	if (kind == DISAGREES && !found && !*report()) {
		float y[N];
		OK(CU(cuCtxSetCurrent, CUcontext)(rank[0].ctx));
		OK(down(y, rank[0].y, sizeof y));
		found = memcmp(y, want, sizeof y) != 0;
	}
	if (kinds[kind].want && *kinds[kind].want) {
		if (!found)
			fprintf(stderr, "%s: not found as it should be with seed %d: \"%s\"\n",
			        kinds[kind].name, seed, report());
		return !found;
	}
	float y[MOST][N];
	int other = 0;
	if (kind == KERNELS) {
		for (int k = 0; k < ranks; k++)
			failures += rank[k].r != 0;
		if (failures || *report())
			fprintf(stderr, "KERNELS: failed in %s mode with seed %d: %s\n",
			        check ? "checking" : "fast", seed, report());
		return failures || *report();
	}
	for (int k = 0; k < ranks; k++) {
		OK(CU(cuCtxSetCurrent, CUcontext)(rank[k].ctx));
		OK(rank[k].r);
		OK(down(y[k], rank[k].y, sizeof y[k]));
		if (kind == RIGHT && !want[1] && k == 0)
			memcpy(want, y[0], sizeof y[0]);
		other |= memcmp(y[k], want, sizeof y[k]) != 0;
	}
	if (failures || *report() ||
	    (other && kind != ARRIVAL_ORDER && kind != TWO_ARRIVAL_ORDER)) {
		fprintf(stderr, "%s: failed in %s mode with seed %d: %s%s\n", kinds[kind].name,
		        check ? "checking" : "fast", seed, report(), other ? " (other sums)" : "");
		return 1;
	}
	return other ? 2 : 0;
}

int
main(int argc, char **argv)
{
	int bad = 0, found = 0, seeds = argc > 2 ? atoi(argv[2]) : 4;
	static const int of_kernels[4] = { 3, 2, 8, 5 };
	float(*want)[N] =
	    mmap(NULL, 9 * sizeof *want, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	for (int kind = 0; kind < N_KIND; kind++) {
		bool seen = false;
		if (argc > 1 && *argv[1] && strcmp(argv[1], kinds[kind].name) && kind != RIGHT)
			continue;
		for (int seed = 0; seed < seeds; seed++)
			for (int check = 1; check >= (kinds[kind].want && *kinds[kind].want);
			     check--) {
				int status;
				if (kind == KERNELS && check == seed % 2)
					continue;
				ranks = kind == RIGHT || kind == LONG || kind == TWO ? 2 << seed % 3
				        : kind == KERNELS ? of_kernels[seed % 4]
				                          : 4;
				fflush(NULL);
				pid_t pid = fork();
				if (pid == 0)
					_exit(child(kind, seed, check, want[ranks]));
				waitpid(pid, &status, 0);
				int rc = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
				seen |= rc == 2;
				bad += rc == 1;
				if (!WIFEXITED(status))
					fprintf(stderr, "%s: signal %d\n", kinds[kind].name,
					        WTERMSIG(status));
			}
		if ((kind == ARRIVAL_ORDER || kind == TWO_ARRIVAL_ORDER) && !seen) {
			fprintf(stderr, "%s: the same sums with every seed\n", kinds[kind].name);
			bad++;
		}
		found += kinds[kind].want != NULL;
	}
	printf("between devices: %d planted mistakes, %s\n", found,
	       bad ? "not all as they should be" : "all found, and right ones silent");
	return bad != 0;
}
