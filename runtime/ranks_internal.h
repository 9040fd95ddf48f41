/* Internals of a group of ranks: records that rank 0 sends, transfers of saved data, and
 * followers. */
#ifndef LLMC_RUNTIME_RANKS_INTERNAL_H
#define LLMC_RUNTIME_RANKS_INTERNAL_H

#include "runtime/ranks.h"

typedef enum RecordKind {
	RECORD_STEP,
	RECORD_AGAIN,
	RECORD_SEQUENCE,
	RECORD_ADAPTER,
	RECORD_KV,
	RECORD_SIZES,
	RECORD_READ,
	RECORD_WRITE,
	RECORD_CLOSE,
	RECORD_OPEN,
	RECORD_END
} RecordKind;
/* Kinds of records, with fields a, b and more:
 *   STEP      a: phase; the session's block follows
 *   AGAIN     a: phase; run the same block again
 *   SEQUENCE  a: sequence, b: its maximum length, more: its adapter slot
 *   ADAPTER   a: slot; for processes, the slot's new content follows (lora_adapters.c)
 *   KV        more: KvOp with operands a and b (kv.h), and the window pages of both
 *   SIZES     each rank reports the bytes that it saves
 *   READ, WRITE  a: number of pages, b: sequence with recurrent states (-1: none). Floats per rank
 * for either, page numbers and window page numbers follow, then the data. The first `more` pages
 * have no window pages Between sessions:
 *   OPEN      limits follow; open a session
 *   END       no more sessions */
typedef struct Record {
	int32_t kind, a, b, more, window[2];
} Record;

/* ranks_lead.c */
bool ranks_leads(const Session *s);
bool ranks_broadcast(Session *s, Record r);
/* Is the first (which 0) or second (which 1) operand of a KvOp a device page? */
bool ranks_is_page(KvOp op, int which);
/* From here on, broadcast the actions of rank 0's session. */
void ranks_lead(Session *s);

/* ranks_transfer.c */
bool ranks_collect_sizes(Session *s, RankSizes *all);
/* E_CHECK: the record or the data after it is invalid. Returns LLMC_OK even if the group has
 * ended. */
llmc_status ranks_follow_transfer(Session *s, const Record *r, llmc_error *err);

/* ranks.c: follow rank 0 until it closes the session or the group ends. Returns an error if a step
 * failed on this rank or a message is invalid (E_CHECK). */
llmc_status ranks_follow_session(Session *s, llmc_error *err);

/* ranks_check.c: are the operands of a record, and the arrays after it, valid for this session? */
bool ranks_kv_op_fits(const Session *s, const Record *r);
bool ranks_sequence_fits(const Session *s, const Record *r);
bool ranks_transfer_fits(const Session *s, const Record *r);
bool ranks_pages_fit(const Session *s, const int32_t *page, const int32_t *window, int32_t n);
bool ranks_step_fits(const Session *s, int phase); /* reads the arrays in s->block */
llmc_status ranks_bad_message(const Session *s, const char *what, llmc_error *err);

#endif
