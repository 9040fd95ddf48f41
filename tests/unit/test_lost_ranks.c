/* Rank processes, two stages of two: one is stopped or killed, within an all-reduce, before a
 * message of the previous stage, or between two steps. All other ranks stop waiting and report
 * which rank it was, on which host, and its position. All groups run in parallel and mostly
 * sleep. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "ops/ops.h"
#include "runtime/comm/comm_internal.h"
#include "tests/unit/waiting.h"

enum { RANKS = 4, WIDTH = 5, LAST_STEP = 2 };

static int timeout_s; /* seconds without an answer until a rank is lost */

static const CommShape shape = { .ranks = RANKS, .team = 2, .parts = 1, .onward = 64, .back = 64 };

typedef enum When {
	IN_SUM,
	IN_STAGE_IN,
	IDLE,
	LEAVES,
	NEVER
} When; /* LEAVES: it closes its endpoint and exits; NEVER: all are stopped for a while */

/* How each group ends. sig: signal that the rank raises; where: expected position, NULL: no rank is
 * lost */
static const struct {
	When when;
	int rank, sig;
	const char *where;
} cases[] = {
	{ IN_SUM, 3, SIGSTOP, "in step 2, layer 3, all_reduce" },
	{ IN_SUM, 3, SIGKILL, "in step 2, layer 3, all_reduce" },
	{ IN_SUM, 0, SIGSTOP, "in step 2, layer 3, all_reduce" },
	{ IN_STAGE_IN, 2, SIGSTOP, "in step 2, stage_in" },
	{ IN_STAGE_IN, 2, SIGKILL, "in step 2, stage_in" },
	{ IDLE, 3, SIGSTOP, "after step 2" },
	{ IDLE, 1, SIGKILL, "after step 2" },
	{ IDLE, 0, SIGKILL, "after step 2" },
	{ LEAVES, 3, 0, NULL },
	{ NEVER, -1, 0, NULL },
};
enum { GROUPS = sizeof cases / sizeof *cases };

/* In shared memory */
typedef struct RankReport {
	atomic_int idle, over; /* it has done its steps; it has written its error, or has exited */
	bool ended;
	llmc_error err;
} RankReport;
typedef struct Reports {
	RankReport rank[RANKS];
	atomic_bool end;
} Reports;

/* Used by the parent only, because pids differ after fork */
typedef struct Group {
	Reports *w;
	char *comm;
	pid_t pid[RANKS];
} Group;

static void
sleep_ms(int ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L }, NULL);
}

static void
release(void *user)
{
	(void)user;
}

/* Run one step of a rank with two all-reduces, and the record that starts it; false: the group has
 * ended. */
static bool
run_step(Comm *c, int64_t step, When when, int sig)
{
	const int rank = comm_rank(c), stage = rank / shape.team;
	float x[WIDTH] = { (float)rank }, y[WIDTH] = { 0 };
	char record = 0;
	bool ok = rank ? comm_receive(c, &record, 1) : comm_send(c, &record, 1);

	if (ok && stage) {
		comm_set_position(c, step, -1, OP_stage_in);
		if (when == IN_STAGE_IN && step == LAST_STEP)
			raise(sig);
		ok = comm_pipe_receive(c, x, sizeof x);
	}
	for (int layer = 2; layer < 4 && ok; layer++) {
		comm_set_position(c, step, layer, OP_all_reduce);
		if (when == IN_SUM && step == LAST_STEP && layer == 3)
			raise(sig);
		ok = comm_all_reduce(c, 0,
		                     &(CommReduce){ .x = x, .y = y, .rows = 1, .width = WIDTH });
	}
	if (ok && rank != 3) /* in the last stage only its first rank sends */
		ok = comm_pipe_send(c, y, sizeof y);
	if (ok && rank == 0)
		ok = comm_pipe_receive(c, y, sizeof y);
	comm_set_position(c, step, -1, -1);
	return ok;
}

static void
run_rank(Reports *w, char *memory, int group, int rank)
{
	const bool lost = cases[group].rank == rank;
	const When when = lost ? cases[group].when : NEVER;
	RankReport *report = &w->rank[rank];
	Comm *c;
	char record;
	bool ok = true;

	if (comm_shm(memory, rank, shape, timeout_s, release, NULL, &c, &report->err) != LLMC_OK)
		_exit(1);
	for (int64_t step = 1; step <= LAST_STEP && ok; step++)
		ok = run_step(c, step, when, cases[group].sig);
	if (ok && when == IDLE)
		raise(cases[group].sig);
	atomic_store(&report->idle, 1);
	while (rank == 0 && !comm_ended(c) && !atomic_load(&w->end))
		sleep_ms(10);
	if (rank == 0 && atomic_load(&w->end)) {
		report->ended = comm_ended(c);
		comm_end(c);
	} else if (!(lost && when == LEAVES)) {
		report->ended = (!ok || !comm_receive(c, &record, 1)) && comm_ended(c);
	}
	comm_error(c, &report->err);
	comm_close(c);
	atomic_store(&report->over, 1);
	_exit(0);
}

static void
begin(Group *g, int group)
{
	g->comm = mmap(NULL, comm_shm_bytes(shape), PROT_READ | PROT_WRITE,
	               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(g->comm, MAP_FAILED);
	for (int k = 0; k < RANKS; k++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			run_rank(g->w, g->comm, group, k);
		}
		g->pid[k] = pid;
	}
}

/* Stop all ranks for longer than the timeout: none is reported, because none could check. */
static void
stop_all(const Group *g)
{
	for (int k = 0; k < RANKS; k++)
		WAIT_FOR(atomic_load(&g->w->rank[k].idle));
	for (int k = 0; k < RANKS; k++)
		kill(g->pid[k], SIGSTOP);
	sleep_ms((timeout_s + 1) * 1000);
	for (int k = 0; k < RANKS; k++)
		kill(g->pid[k], SIGCONT);
	sleep_ms(500);
}

static void
finish(const Group *g, int group)
{
	Reports *w = g->w;
	char host[60] = "", how[40], want[200];

	gethostname(host, sizeof host - 1);
	if (cases[group].where) {
		snprintf(how, sizeof how,
		         cases[group].sig == SIGSTOP ? "no answer for %d s"
		                                     : "its process has ended",
		         timeout_s);
		snprintf(want, sizeof want, "rank %d of 4 (host %s) is lost: %s %s",
		         cases[group].rank, host, how, cases[group].where);
	} else {
		snprintf(want, sizeof want, "a rank of this model has ended");
		if (cases[group].when == LEAVES)
			WAIT_FOR(atomic_load(&w->rank[cases[group].rank].over));
		atomic_store(&w->end, true);
	}
	for (int k = 0; k < RANKS; k++) {
		if (k == cases[group].rank)
			continue;
		WAIT_FOR(atomic_load(&w->rank[k].over));
		assert_string_equal(w->rank[k].err.text, want);
		assert_int_equal(w->rank[k].err.code, LLMC_E_DEVICE);
		assert_int_equal(w->rank[k].ended, cases[group].where || k > 0);
	}
	if (cases[group].sig == SIGSTOP)
		kill(g->pid[cases[group].rank], SIGKILL);
	munmap(g->comm, comm_shm_bytes(shape));
}

static void
remaining_ranks_report_the_lost_one(void **state)
{
	Group group[GROUPS];
	Reports *wall = mmap(NULL, sizeof *wall * GROUPS, PROT_READ | PROT_WRITE,
	                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_ptr_not_equal(wall, MAP_FAILED);
	signal(SIGCHLD, SIG_IGN); /* killed children vanish at once, as launchers arrange it */
	alarm((unsigned)wait_scaled(WAIT_HANG_S));
	for (int g = 0; g < GROUPS; g++) {
		group[g] = (Group){ .w = &wall[g] };
		begin(&group[g], g);
	}
	/* meanwhile a rank that has closed its endpoint is not reported either */
	for (int g = 0; g < GROUPS; g++)
		if (cases[g].when == NEVER)
			stop_all(&group[g]);
	for (int g = 0; g < GROUPS; g++)
		finish(&group[g], g);
	while (wait(NULL) > 0)
		;
	munmap(wall, sizeof *wall * GROUPS);
}

static void
positions_are_printed_as_they_are(void **state)
{
	atomic_ullong where = 0;
	Comm c = { .where = &where };
	char text[100];

	(void)state;
	comm_position_text(0, text, sizeof text);
	assert_string_equal(text, "before the first step");
	comm_set_position(&c, 4294967295, 1023, OP_COUNT - 1);
	comm_position_text(where, text, sizeof text);
	assert_non_null(strstr(text, "in step 4294967295, layer 1023, "));
	assert_non_null(strstr(text, op_info[OP_COUNT - 1].name));
	comm_set_position(&c, 12, 0, 0);
	comm_position_text(where, text, sizeof text);
	assert_non_null(strstr(text, "in step 12, layer 0, "));
	comm_set_position(&c, 12, -1, -1);
	comm_position_text(where, text, sizeof text);
	assert_string_equal(text, "after step 12");
	comm_position_text(UINT64_MAX, text, sizeof text); /* an invalid op */
	assert_string_equal(text, "after step 4294967295");
	comm_set_position(&(Comm){ 0 }, 1, 2, 3); /* positions are not recorded */
}

int
main(void)
{
	timeout_s = (int)wait_scaled(3);
	const struct CMUnitTest tests[] = { cmocka_unit_test(positions_are_printed_as_they_are),
		                            cmocka_unit_test(remaining_ranks_report_the_lost_one) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
