/* Creates the group that runs the steps of a launcher's ranks: through memory that they share on
 * one host, else through MPI. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/comm/mpi_internal.h"

typedef struct MpiWindow {
	MpiWorld *w;
	MpiHandle win;
	Comm *of;
} MpiWindow;

/* Free the window on all ranks together. If the group has ended early, keep it: the process ends
 * soon. */
static void
window_release(void *user)
{
	MpiWindow *win = user;

	if (!comm_ended(win->of))
		win->w->win_free(&win->win);
	else
		win->w->lost = true;
	free(win);
}

static llmc_status
open_window(MpiWorld *w, CommShape shape, Comm **out, llmc_error *err)
{
	int unit;
	size_t bytes = comm_shm_bytes(shape) + 64;
	intptr_t size;
	char *memory = NULL;
	MpiWindow *win = calloc(1, sizeof *win);

	if (!win)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d ranks", w->ranks);
	win->w = w;
	if (w->win_allocate(w->rank_ == 0 ? (intptr_t)bytes : 0, 1, w->info_null, w->host, &memory,
	                    &win->win) ||
	    w->win_query(win->win, 0, &size, &unit, &memory)) {
		free(win);
		return error_set(err, LLMC_E_MEMORY,
		                 "MPI cannot allocate %zu bytes shared by the ranks of this host",
		                 bytes);
	}
	/* this offset is equal on all ranks, because windows start at page boundaries */
	memory += -(uintptr_t)memory & 63;
	if (w->rank_ == 0)
		memset(memory, 0, bytes - 64);
	w->barrier(w->host);
	llmc_status status =
	    comm_shm(memory, w->rank_, shape, comm_timeout(), window_release, win, out, err);
	if (status != LLMC_OK)
		free(win);
	else
		win->of = *out;
	return status;
}

llmc_status
mpi_world_comm(MpiWorld *w, CommShape shape, Comm **out, llmc_error *err)
{
	const char *ops = getenv("LLMC_COMM");
	char n[24];

	*out = NULL;
	shape.ranks = w->ranks;
	snprintf(n, sizeof n, "%d threads", shape.parts);
	if (w->one_host && !(ops && strcmp(ops, "mpi") == 0)) {
		TRY(mpi_world_check_same(w, w->ranks, "number of threads", n, err));
		return open_window(w, shape, out, err);
	}
	return comm_mpi(w, shape, out, err);
}
