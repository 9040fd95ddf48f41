/* Detects ranks that are stopped or gone. Waiting time is counted in checks, not by the clock, so
 * no rank counts as lost after the whole job was stopped and continued. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "runtime/comm/comm_internal.h"

enum { STILL_CHECKS = 3 }; /* checks without a new beat before the process is looked up by pid */

struct LivenessWatch {
	Heartbeat *heartbeat;
	int rank, ranks, patience; /* patience: in checks */
	int *still;                /* [ranks] checks without a beat */
	uint64_t *seen;            /* [ranks] latest beat */
	void (*exchange)(void *user);
	void (*missed)(void *user, int rank, bool gone);
	void *user;
	bool reported, over;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t stop;
};

/* inode of this process's PID namespace; 0 if unknown */
static uint64_t
pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static bool
is_gone(const LivenessWatch *w, int k)
{
	const uint64_t space = atomic_load(&w->heartbeat[w->rank].space);

	return space && atomic_load(&w->heartbeat[k].space) == space &&
	       kill(atomic_load(&w->heartbeat[k].pid), 0) != 0 && errno == ESRCH;
}

static void
check_peers(LivenessWatch *w)
{
	for (int k = 0; k < w->ranks && !w->reported; k++) {
		const uint64_t beat = atomic_load(&w->heartbeat[k].beat);
		if (k == w->rank || beat == 0 || beat == COMM_LEFT)
			continue;
		w->still[k] = beat == w->seen[k] ? w->still[k] + 1 : 0;
		w->seen[k] = beat;
		/* the rank may have closed its watch and exited since the first load of its beat */
		const bool gone = w->still[k] >= STILL_CHECKS && is_gone(w, k) &&
		                  atomic_load(&w->heartbeat[k].beat) != COMM_LEFT;
		w->reported = gone || w->still[k] > w->patience;
		if (w->reported)
			w->missed(w->user, k, gone);
	}
}

static void *
watch_main(void *arg)
{
	LivenessWatch *w = arg;

	pthread_mutex_lock(&w->lock);
	while (!w->over) {
		struct timespec until;
		clock_after(&until, COMM_POLL_MS);
		atomic_fetch_add(&w->heartbeat[w->rank].beat, 1);
		if (w->exchange && !w->reported)
			w->exchange(w->user);
		if (pthread_cond_timedwait(&w->stop, &w->lock, &until) == ETIMEDOUT)
			check_peers(w);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static void
watch_free(LivenessWatch *w)
{
	pthread_cond_destroy(&w->stop);
	pthread_mutex_destroy(&w->lock);
	free(w->still);
	free(w->seen);
	free(w);
}

llmc_status
watch_open(Heartbeat *heartbeat, int rank, int ranks, int timeout_s, void (*exchange)(void *user),
           void (*missed)(void *user, int rank, bool gone), void *user, LivenessWatch **out,
           llmc_error *err)
{
	LivenessWatch *w = calloc(1, sizeof *w);
	int rc = ENOMEM;

	*out = NULL;
	if (!w)
		return error_set(err, LLMC_E_MEMORY, "out of memory for rank %d", rank);
	*w = (LivenessWatch){ .heartbeat = heartbeat,
		              .rank = rank,
		              .ranks = ranks,
		              .patience = timeout_s * (1000 / COMM_POLL_MS),
		              .exchange = exchange,
		              .missed = missed,
		              .user = user };
	clock_cond_init(&w->stop);
	pthread_mutex_init(&w->lock, NULL);
	w->still = calloc((size_t)ranks, sizeof *w->still);
	w->seen = calloc((size_t)ranks, sizeof *w->seen);
	atomic_store(&heartbeat[rank].pid, getpid());
	atomic_store(&heartbeat[rank].space, pid_namespace());
	/* other ranks monitor this one from here on, even if its thread never runs */
	atomic_store(&heartbeat[rank].beat, 1);
	if (w->still && w->seen) {
		rc = thread_create(&w->thread, NULL, watch_main, w);
	}
	if (rc) {
		atomic_store(&heartbeat[rank].beat, COMM_LEFT);
		watch_free(w);
		return error_set(
		    err, LLMC_E_MEMORY,
		    "cannot start the thread that watches the other ranks of rank %d: %s", rank,
		    strerror(rc));
	}
	*out = w;
	return LLMC_OK;
}

void
watch_close(LivenessWatch *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->over = true;
	pthread_cond_signal(&w->stop);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	atomic_store(&w->heartbeat[w->rank].beat, COMM_LEFT);
	watch_free(w);
}
