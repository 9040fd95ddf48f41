/* Ranks of one model: rank 0 leads, the others follow. See ranks.c. */
#ifndef LLMC_RUNTIME_RANKS_H
#define LLMC_RUNTIME_RANKS_H

#include "runtime/comm/mpi_world.h"
#include "runtime/state/session_state.h"

/* Open the sessions of the other ranks, one thread per rank, after the session of rank 0 has been
 * opened. The other ranks follow rank 0 from then on. */
llmc_status ranks_open(Session *s, llmc_error *err);
/* Stop the ranks. If ranks are processes, comm stays open until their devices are closed. Does
 * nothing for a single rank. */
void ranks_close(Session *s);

/* For ranks that are processes: open a session with these limits on all ranks, or on none. Called
 * by rank 0; the others are in ranks_follow. */
llmc_status ranks_announce(Runtime *rt, const llmc_limits *lim, llmc_error *err);
llmc_status ranks_rendezvous(Session **s, Runtime *rt, llmc_status own, llmc_error *err);
llmc_status ranks_follow(Runtime *rt, llmc_error *err);
void ranks_dismiss(Runtime *rt);

/* Broadcast actions of rank 0's session, in order. These functions do nothing for a single rank and
 * return false if the group has ended. ranks_step sends the step that the session's arrays
 * describe. */
bool ranks_step(Session *s, int phase);
void ranks_sequence(Session *s, llmc_seq q, int32_t length_bound);
/* Wait until later stages have executed all records: if rank 0 needs no logits, they may be some
 * steps late. */
void ranks_exchange_sizes(Session *s);
/* A step of rank 0 has failed. Returns the error of another rank in this process if that was the
 * cause. */
llmc_status ranks_error(Session *s, llmc_status own, llmc_error *err);

/* Save or restore n pages, rank by rank, and then the states of sequence q (-1: none), rank by
 * rank. windowless: see kv_pages_read. ranks_saved_bytes returns the total size. A negative size,
 * or false, means that the group has ended. With a single rank they handle its own data only. */
int64_t ranks_saved_bytes(Session *s, int32_t n, int32_t windowless, bool states);
bool ranks_save(Session *s, const int32_t *page, int32_t n, int32_t windowless, llmc_seq q,
                void *host);
bool ranks_restore(Session *s, const int32_t *page, int32_t n, int32_t windowless, llmc_seq q,
                   const void *host);

/* Bind the calling thread to one of `ranks` equal shares of the processors while a rank is opened,
 * and restore its affinity mask after that. */
typedef struct RankAffinity {
	bool moved;
	cpu_set_t was;
} RankAffinity;
RankAffinity ranks_pin_cpus(int rank, int ranks);
void ranks_unpin_cpus(const RankAffinity *p);

#endif
