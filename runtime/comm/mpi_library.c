/* MPI through the two binary interfaces in use: Open MPI's, whose handles are addresses of its
 * symbols, and MPICH's (Intel MPI, Cray, MVAPICH), whose handles are numbers. A handle is passed as
 * a pointer; where it is a number, the callee reads its low half. This file opens and starts MPI;
 * mpi_comm.c runs steps. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "runtime/comm/mpi_internal.h"
#include "runtime/threads/threads.h"

enum { SERIALIZED = 2, MULTIPLE = 3 };

/* One per process, like MPI itself. */
static MpiWorld the_world = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- waiting ---- */

/* Poll for a short time, then sleep between polls. The sleeps of a patient caller grow with the
 * time that it has waited. */
bool
mpi_finish(MpiWorld *w, MpiHandle *request, bool patient)
{
	char status[256];
	double since = clock_now();
	long pause = 20000;

	for (int done = 0; !atomic_load(&w->lost);) {
		if (MPI_CALL(w, test, request, &done, status))
			return false;
		if (done)
			return true;
		double waited = clock_now() - since;
		if (waited < 0.0002) {
			pause_cpu();
			continue;
		}
		nanosleep(&(struct timespec){ .tv_nsec = pause }, NULL);
		if (patient && waited > 0.002)
			pause = pause < 500000 ? 2 * pause : 1000000;
	}
	return false;
}

bool
mpi_gather(MpiWorld *w, MpiHandle of, const void *x, size_t n, void *all)
{
	MpiHandle request = NULL;

	return MPI_CALL(w, iallgather, x, (int)n, w->byte, all, (int)n, w->byte, of, &request) ==
	           0 &&
	       mpi_finish(w, &request, false);
}

/* ---- opening ---- */

static int
number_of(const char *variable)
{
	const char *s = getenv(variable);

	return s && *s ? atoi(s) : -1;
}

typedef struct Launcher {
	const char *rank, *size, *title, *install;
	const char *name[4];
} Launcher;

static const Launcher launchers[] = {
	{ "OMPI_COMM_WORLD_RANK",
	  "OMPI_COMM_WORLD_SIZE",
	  "Open MPI",
	  "apt-get install libopenmpi3",
	  { "libmpi.so.40" } },
	{ "PMI_RANK",
	  "PMI_SIZE",
	  "MPICH",
	  "apt-get install libmpich12",
	  { "libmpi.so.12", "libmpich.so.12" } },
	/* srun --mpi=pmix, which both libraries support */
	{ "PMIX_RANK",
	  "SLURM_NTASKS",
	  "PMIx",
	  "apt-get install libopenmpi3",
	  { "libmpi.so.40", "libmpi.so.12", "libmpich.so.12" } },
};

static llmc_status
open_library(MpiWorld *w, const Launcher *l, llmc_error *err)
{
	const char *own = getenv("LLMC_MPI"), *name = NULL, *lacks = NULL;

	if (own && *own)
		w->lib = dlopen(name = own, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
	for (int i = 0; !w->lib && !(own && *own) && l->name[i]; i++)
		/* global, because the library's plug-ins need its symbols */
		w->lib = dlopen(name = l->name[i], RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
	if (!w->lib)
		return error_set(err, LLMC_E_MISSING,
		                 "mpirun of %s started this, but %s cannot be opened: %s, or name "
		                 "the library with LLMC_MPI=PATH",
		                 l->title, name, l->install);
#define X(member, symbol, args)                                                                    \
	do {                                                                                       \
		void *at_ = dlsym(w->lib, symbol);                                                 \
		memcpy(&w->member, &at_, sizeof at_);                                              \
		lacks = at_ || lacks ? lacks : symbol;                                             \
	} while (0);
	MPI_CALLS(X)
#undef X
	if (lacks)
		return error_set(err, LLMC_E_MISSING, "%s has no %s: llmc needs MPI 3 or newer",
		                 name, lacks);
	if ((w->world = dlsym(w->lib, "ompi_mpi_comm_world")) != NULL) {
		w->byte = dlsym(w->lib, "ompi_mpi_byte");
		w->info_null = dlsym(w->lib, "ompi_mpi_info_null");
		w->type_shared = 0;
	} else {
		w->world = (MpiHandle)(uintptr_t)0x44000000;
		w->byte = (MpiHandle)(uintptr_t)0x4c00010d;
		w->info_null = (MpiHandle)(uintptr_t)0x1c000000;
		w->type_shared = 1;
	}
	return LLMC_OK;
}

/* Start MPI. All ranks make these calls, so a rank that fails aborts the job instead of leaving the
 * others waiting. */
static llmc_status
start(MpiWorld *w, const Launcher *l, const void *comm, llmc_error *err)
{
	int done = 0, level = 0, size = 0, want = comm ? 0 : number_of(l->size);

	TRY(open_library(w, l, err));
	if (w->initialized(&done) || (!done && !comm && w->init(NULL, NULL, SERIALIZED, &level)))
		return error_set(err, LLMC_E_MISSING, "MPI does not start (MPI_Init_thread)");
	if (comm && !done)
		return error_set(err, LLMC_E_INPUT, "mpi_comm: this program has not started MPI");
	w->ours = w->ours || !done;
	if (done && w->thread_level(&level))
		return error_set(
		    err, LLMC_E_MISSING,
		    "MPI does not report from which threads it may be called (MPI_Query_thread)");
	if (level < SERIALIZED)
		return error_set(err, LLMC_E_MISSING,
		                 "MPI was started without MPI_THREAD_SERIALIZED: several threads "
		                 "may not call it, not even one at a time");
	/* true if only llmc calls MPI, or if MPI accepts calls from all threads */
	w->own_thread = w->ours || level == MULTIPLE;
	if (comm) { /* a handle is an address or a number */
		MpiHandle own = NULL, given = NULL;
		memcpy(&given, comm,
		       dlsym(w->lib, "ompi_mpi_comm_world") ? sizeof given : sizeof(int));
		/* duplicate the communicator, so that messages of the program stay separate */
		if (w->dup(given, &own))
			return error_set(err, LLMC_E_INPUT,
			                 "mpi_comm: is no communicator (MPI_Comm_dup)");
		w->world = own;
	}
	w->rank(w->world, &w->rank_);
	w->size(w->world, &size);
	if (want > 0 && size != want)
		return error_set(
		    err, LLMC_E_MISSING,
		    "the launcher started %d ranks, MPI reports %d: mpirun and the MPI "
		    "library are of different kinds (mpirun: %s; library: %s); "
		    "LLMC_MPI=PATH names another library",
		    want, size, l->title,
		    dlsym(w->lib, "ompi_mpi_comm_world") ? "Open MPI" : "MPICH");
	w->ranks = size;
	gethostname(w->name, sizeof w->name - 1);
	if (w->split_type(w->world, w->type_shared, 0, w->info_null, &w->host) ||
	    w->size(w->host, &w->on_host) || w->rank(w->host, &w->at_host))
		return error_set(err, LLMC_E_MISSING,
		                 "MPI does not report which ranks share a host");
	/* compare the counts of all ranks, so that all of them decide alike; hosts may have
	 * different numbers of ranks */
	int *n = calloc((size_t)size, sizeof *n);
	w->one_host = n && mpi_gather(w, w->world, &w->on_host, sizeof *n, n);
	for (int k = 0; n && k < size; k++)
		w->one_host = w->one_host && n[k] == size;
	free(n);
	return LLMC_OK;
}

llmc_status
mpi_world_open(const void *comm, MpiWorld **out, llmc_error *err)
{
	MpiWorld *w = &the_world;
	const Launcher *l = NULL;

	*out = NULL;
	for (size_t i = 0; i < sizeof launchers / sizeof *launchers && !l; i++)
		l = number_of(launchers[i].rank) >= 0 ? &launchers[i] : NULL;
	if (!l && comm)
		return error_set(err, LLMC_E_MISSING,
		                 "mpi_comm: no launcher has started this program (mpirun, srun)");
	if (!l || (!comm && number_of(l->size) == 1))
		return LLMC_OK;
	if (w->taken || w->over)
		return error_set(
		    err, LLMC_E_BUSY,
		    "one model runs on the ranks that a launcher has started, and one %s",
		    w->taken ? "does" : "did");
	if (!w->ranks || comm || w->given) {
		w->given = comm != NULL;
		llmc_status status = start(w, l, comm, err);
		if (status != LLMC_OK) {
			w->ranks = 0;
			return status;
		}
	}
	if (w->ranks < 2)
		return LLMC_OK;
	w->taken = true;
	*out = w;
	return LLMC_OK;
}

void
mpi_world_close(MpiWorld *w)
{
	if (!w)
		return;
	w->taken = false;
	/* give rank 0 time to handle its requests; when it ends the job, this process ends too */
	if (w->lost && w->rank_ > 0)
		nanosleep(&(struct timespec){ .tv_sec = 2 }, NULL);
	if (w->lost) /* the others would wait for ever */
		w->end_job(w->world, 1);
	else if (w->ours && !w->over)
		w->finalize();
	w->over = w->over || w->ours;
}

int
mpi_world_rank(const MpiWorld *w)
{
	return w->rank_;
}

int
mpi_world_ranks(const MpiWorld *w)
{
	return w->ranks;
}

int
mpi_world_local_rank(const MpiWorld *w)
{
	return w->at_host;
}

int
mpi_world_local_ranks(const MpiWorld *w)
{
	return w->on_host;
}

int
mpi_world_threads(const MpiWorld *w)
{
	int n = topology_threads();

	if (n >= sysconf(_SC_NPROCESSORS_ONLN) /
	             2) /* the process is not bound, or bound to one thread of every core */
		n /= w->on_host;
	return n > 0 ? n : 1;
}

/* ---- agreeing ---- */

typedef struct AgreeMessage {
	int32_t status;
	char host[60], text[440];
} AgreeMessage;

static AgreeMessage *
gather_words(MpiWorld *w, const AgreeMessage *own, llmc_error *err)
{
	AgreeMessage *all = calloc((size_t)w->ranks, sizeof *all);

	if (all && mpi_gather(w, w->world, own, sizeof *own, all)) {
		for (int k = 0; k < w->ranks; k++)
			all[k].host[sizeof all->host - 1] = all[k].text[sizeof all->text - 1] = 0;
		return all;
	}
	free(all);
	error_set(err, LLMC_E_DEVICE, "ranks of this job cannot be reached");
	return NULL;
}

llmc_status
mpi_world_agree(MpiWorld *w, llmc_status own, const llmc_error *why, llmc_error *err)
{
	AgreeMessage word = { .status = own };
	llmc_status status = own;

	snprintf(word.host, sizeof word.host, "%s", w->name);
	if (own != LLMC_OK)
		snprintf(word.text, sizeof word.text, "%.400s", why->text);
	AgreeMessage *all = gather_words(w, &word, err);
	if (!all)
		return LLMC_E_DEVICE;
	for (int k = 0; k < w->ranks; k++)
		if (all[k].status != LLMC_OK) {
			status = k == w->rank_ ? error_set(err, own, "%s", why->text)
			                       : error_set(err, (llmc_status)all[k].status,
			                                   "rank %d (host %s): %s", k, all[k].host,
			                                   all[k].text);
			break;
		}
	free(all);
	return status;
}

llmc_status
mpi_world_check_same(MpiWorld *w, int team, const char *what, const char *text, llmc_error *err)
{
	AgreeMessage word = { 0 };
	llmc_status status = LLMC_OK;

	snprintf(word.host, sizeof word.host, "%s", w->name);
	snprintf(word.text, sizeof word.text, "%.400s", text);
	AgreeMessage *all = gather_words(w, &word, err);
	if (!all)
		return LLMC_E_DEVICE;
	for (int k = 1, of; k < w->ranks && status == LLMC_OK; k++)
		if (strcmp(all[k].text, all[of = k / team * team].text) != 0)
			status = error_set(err, LLMC_E_INPUT,
			                   "rank %d (host %s) has another %s than rank %d (host "
			                   "%s): %.80s, not %.80s",
			                   k, all[k].host, what, of, all[of].host, all[k].text,
			                   all[of].text);
	free(all);
	return status;
}

/* ---- bytes from rank 0 ---- */

static bool
broadcast(MpiWorld *w, void *data, size_t n, bool patient)
{
	MpiHandle request = NULL;

	while (n) {
		size_t bytes = n < (1 << 20) ? n : 1 << 20;
		if (MPI_CALL(w, ibcast, data, (int)bytes, w->byte, 0, w->world, &request) ||
		    !mpi_finish(w, &request, patient))
			return false;
		data = (char *)data + bytes;
		n -= bytes;
	}
	return true;
}

bool
mpi_world_broadcast(MpiWorld *w, const void *data, size_t n)
{
	/* MPI only reads the root's buffer */
	return !w->lost && broadcast(w, (void *)(uintptr_t)data, n, false);
}

bool
mpi_world_receive(MpiWorld *w, void *data, size_t n)
{
	return !w->lost && broadcast(w, data, n, true);
}
