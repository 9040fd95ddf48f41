/* Devices that write to each other's memory, a thread of the program each: a right sum over them is silent and has the same bits with every
 * seed; each planted mistake is found in checking mode, or shows in the bits. Each run is a process of its own. */
#include "host.h"

#include <pthread.h>
#include <sys/mman.h>

enum { MOST = 8, N = 256, ROUNDS = 5 };
enum { RIGHT, STALE_FLAG, NO_RELEASE, DEVICE_SCOPE, ARRIVAL_ORDER, EARLY_READ, ONE_SLOT, DEVICE_WAIT, LONG, LAST_UNHEARD, SKIPPED, DISAGREES, NO_ACCESS, LATE, N_KIND };
typedef struct { int rank, ranks; unsigned round, pieces; CUdeviceptr flag[MOST], slot[MOST]; CUdeviceptr x, y; } Args;

/* what the finding says; "": it shows in the sums alone */
static const struct { const char *name, *want; } kinds[N_KIND] = {
	[RIGHT] = { "RIGHT", NULL }, [LONG] = { "LONG", NULL }, [LATE] = { "LATE", NULL }, [ARRIVAL_ORDER] = { "ARRIVAL_ORDER", "" },
	[STALE_FLAG] = { "STALE_FLAG", "race: " }, [NO_RELEASE] = { "NO_RELEASE", "race: " },
	[DEVICE_SCOPE] = { "DEVICE_SCOPE", "an atomic without the system's scope on memory of another device" },
	[DEVICE_WAIT] = { "DEVICE_WAIT", "race: an atomic and another one" },
	[LAST_UNHEARD] = { "LAST_UNHEARD", "race: " },
	[EARLY_READ] = { "EARLY_READ", "race: " }, [ONE_SLOT] = { "ONE_SLOT", "race: " },
	[SKIPPED] = { "SKIPPED", "nothing is queued on device 1" }, [DISAGREES] = { "DISAGREES", "race: " }, [NO_ACCESS] = { "NO_ACCESS", "without peer access" },
};

typedef struct Rank { pthread_t thread; int number, kind; CUcontext ctx; CUdeviceptr flag, slot, x, y; CUresult r; } Rank;
static Rank rank[MOST];
static int ranks;
static pthread_barrier_t all;

static void *
run(void *arg)
{
	Rank *me = arg;
	char define[32];
	float zero[2 * MOST * N] = { 0 }, x[ROUNDS][N];
	int bug = me->kind < SKIPPED ? me->kind : RIGHT;

	OK(CU(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&me->ctx, me->number));
	OK(CU(cuCtxSetCurrent, CUcontext)(me->ctx));
	snprintf(define, sizeof define, "-DBUG=%d", bug);
	CUmodule m = module("tests/emu/bugs/peers.cu", define);
	me->flag = device(MOST * 4), me->slot = device(sizeof zero), me->x = device(sizeof x), me->y = device(sizeof *x);
	OK(up(me->flag, zero, MOST * 4));
	OK(up(me->y, zero, sizeof *x));
	if (me->kind == EARLY_READ || me->kind == STALE_FLAG)
		OK(up(me->slot, zero, sizeof zero));
	for (int r = 0; r < ROUNDS; r++)
		for (int i = 0; i < N; i++)
			x[r][i] = (float)(me->number * 7 + i + r) * (me->number & 1 ? 0.37f : -1234.5f) / 3;
	OK(up(me->x, x, sizeof x));
	CUstream s = stream();
	CUfunction f = function(m, "sum");
	pthread_barrier_wait(&all);
	for (int k = 0; k < ranks; k++)
		if (k != me->number && me->kind != NO_ACCESS)
			OK(CU(cuCtxEnablePeerAccess, CUcontext, unsigned)(rank[k].ctx, 0));
	pthread_barrier_wait(&all);
	Args a = { .rank = me->number, .ranks = ranks, .y = me->y };
	for (int k = 0; k < ranks; k++)
		a.flag[k] = rank[k].flag, a.slot[k] = rank[k].slot;
	/* two pieces a launch: what a kernel has heard of one that still runs the next one relies on */
	const int pieces = me->kind == LONG || me->kind == LAST_UNHEARD ? 2 : 1;
	for (int r = 0; r < ROUNDS && !me->r; r += pieces) {
		a.round = (unsigned)r + 1;
		a.pieces = (unsigned)(ROUNDS - r < pieces ? ROUNDS - r : pieces);
		a.x = me->x + (CUdeviceptr)r * sizeof *x;
		if (me->kind == LATE && me->number == 1)
			for (volatile int i = 0; i < 20000000; i++)
				;
		if (me->number == 1 && ((me->kind == SKIPPED && r == ROUNDS - 1) || (me->kind == DISAGREES && r == 2)))
			continue;
		me->r = launch(f, 1, N, 0, s, 0, &a);
	}
	if (me->kind != LATE) /* all have queued what they will before anyone waits: a wait that ends is not one for a slow thread */
		pthread_barrier_wait(&all);
	if (!me->r)
		me->r = CU(cuStreamSynchronize, CUstream)(s);
	return NULL;
}

/* Exit code: 0 as it should be, 1 not, 2 (ARRIVAL_ORDER) other bits. */
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
	if (kind == SKIPPED) /* in which case nothing comes, however long one waits */
		setenv("LLMC_EMU_PATIENCE", "200", 1);
	libs_open();
	OK(CU(cuInit, unsigned)(0));
	pthread_barrier_init(&all, NULL, (unsigned)ranks);
	for (int k = 0; k < ranks; k++) {
		rank[k].number = k;
		rank[k].kind = kind;
		pthread_create(&rank[k].thread, NULL, run, &rank[k]);
	}
	for (int k = 0; k < ranks; k++)
		pthread_join(rank[k].thread, NULL);
	bool found = kinds[kind].want && *kinds[kind].want && strstr(report(), kinds[kind].want);
	if (kinds[kind].want && *kinds[kind].want) {
		if (!found)
			fprintf(stderr, "%s: not found as it should be with seed %d: \"%s\"\n", kinds[kind].name, seed, report());
		return !found;
	}
	float y[MOST][N];
	int other = 0;
	for (int k = 0; k < ranks; k++) {
		OK(CU(cuCtxSetCurrent, CUcontext)(rank[k].ctx));
		OK(rank[k].r);
		OK(down(y[k], rank[k].y, sizeof y[k]));
		if (kind == RIGHT && !want[1] && k == 0)
			memcpy(want, y[0], sizeof y[0]);
		other |= memcmp(y[k], want, sizeof y[k]) != 0;
	}
	if (failures || *report() || (other && kind != ARRIVAL_ORDER)) {
		fprintf(stderr, "%s: failed in %s mode with seed %d: %s%s\n", kinds[kind].name, check ? "checking" : "fast", seed, report(), other ? " (other sums)" : "");
		return 1;
	}
	return other ? 2 : 0;
}

int
main(int argc, char **argv)
{
	int bad = 0, found = 0, seeds = argc > 2 ? atoi(argv[2]) : 4;
	float (*want)[N] = mmap(NULL, 9 * sizeof *want, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	for (int kind = 0; kind < N_KIND; kind++) {
		bool seen = false;
		if (argc > 1 && *argv[1] && strcmp(argv[1], kinds[kind].name) && kind != RIGHT)
			continue;
		for (int seed = 0; seed < seeds; seed++)
			for (int check = 1; check >= (kinds[kind].want && *kinds[kind].want); check--) {
				int status;
				ranks = kind == RIGHT || kind == LONG ? 2 << seed % 3 : 4;
				fflush(NULL);
				pid_t pid = fork();
				if (pid == 0)
					_exit(child(kind, seed, check, want[ranks]));
				waitpid(pid, &status, 0);
				int rc = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
				seen |= rc == 2;
				bad += rc == 1;
				if (!WIFEXITED(status))
					fprintf(stderr, "%s: signal %d\n", kinds[kind].name, WTERMSIG(status));
			}
		if (kind == ARRIVAL_ORDER && !seen) {
			fprintf(stderr, "%s: the same sums with every seed\n", kinds[kind].name);
			bad++;
		}
		found += kinds[kind].want != NULL;
	}
	printf("between devices: %d planted mistakes, %s\n", found, bad ? "not all as they should be" : "all found, and right ones silent");
	return bad != 0;
}
