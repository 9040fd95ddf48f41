/* Ranks of one model: rank 0 leads, the others follow. See ranks.c. */
#ifndef LLMC_RUNTIME_RANKS_H
#define LLMC_RUNTIME_RANKS_H

#include "runtime/comm/mpi_world.h"
#include "runtime/state/session_state.h"

/* The session of rank 0 has been opened: open those of the others, a thread each, and have them
 * follow it. */
llmc_status ranks_open(Session *s, llmc_error *err);
/* They end; the comm of ranks that are processes stays until their devices are closed. Nothing
 * happens where there are none. */
void ranks_close(Session *s);

/* Ranks that are processes. Rank 0 opens a session: the others do as well, with these limits, or
 * all refuse. */
llmc_status ranks_announce(Runtime *rt, const llmc_limits *lim, llmc_error *err);
llmc_status ranks_rendezvous(Session **s, Runtime *rt, llmc_status own, llmc_error *err);
llmc_status ranks_follow(Runtime *rt, llmc_error *err);
void ranks_dismiss(Runtime *rt);

/* What the session of rank 0 tells the others, in the order of its own doing; of a session alone
 * they do nothing. False: the group has ended. The step is the one that the session's arrays
 * describe. */
bool ranks_step(Session *s, int phase);
void ranks_sequence(Session *s, llmc_seq q, int32_t length_bound);
/* Until stages, which run behind rank 0 where it waits for no logits of theirs, have done what they
 * were told. */
void ranks_exchange_sizes(Session *s);
/* A step of rank 0 has failed: if because another rank of this process has, that one's error. */
llmc_status ranks_error(Session *s, llmc_status own, llmc_error *err);

/* What all ranks keep, out and in again; of a session alone its own: n pages, rank by rank, then
 * the states of sequence q, rank by rank; q -1: none. behind: as kv_pages_read. bytes: of all that;
 * below 0, or false: the group has ended. */
int64_t ranks_saved_bytes(Session *s, int32_t n, int32_t behind, bool states);
bool ranks_save(Session *s, const int32_t *page, int32_t n, int32_t behind, llmc_seq q, void *host);
bool ranks_restore(Session *s, const int32_t *page, int32_t n, int32_t behind, llmc_seq q,
                   const void *host);

/* The calling thread's processors while a rank is opened, of `ranks` in equal shares; back to what
 * they were. */
typedef struct RankAffinity {
	bool moved;
	cpu_set_t was;
} RankAffinity;
RankAffinity ranks_pin_cpus(int rank, int ranks);
void ranks_unpin_cpus(const RankAffinity *p);

#endif
