/* The engine behind llmc_engine: one thread drives a session through the scheduler; callers put
 * requests in and take events out from any thread.
 *
 *   scheduler.c    what runs in a step
 *   request.c      a request as it is kept: its copy, its choices, the text they become
 *   event_list.c    lists of events
 *   events.c     events on their way to callers, and the callers' side of everything
 *   draft_model.c   guesses of a second model
 *   grammar_masks.c    what grammars let come next, made while a step runs
 *   mtp_head.c     rows of the model for the head of its own that guesses
 *   engine.c   the thread: inbox, step, sampling, cancellation, deadlines
 *   inline.c   one request on the caller's thread, for llmc_generate
 *   engine_open.c     opening and closing; the scheduler's hold on the session
 *   histogram.c   counters and histograms */
#ifndef LLMC_RUNTIME_ENGINE_H
#define LLMC_RUNTIME_ENGINE_H

#include "runtime/runtime.h"

typedef struct Engine Engine;

/* The limits that the engine's session needs: the caller's with the engine's defaults. */
llmc_limits engine_limits(const Plan *plan, const llmc_engine_options *opt);
/* session (opened with these limits) and tokenizer (may be NULL) must outlive the engine. */
llmc_status engine_open(Session *session, const llmc_tokenizer *tok, const llmc_engine_options *opt,
                        Engine **out, llmc_error *err);
/* An engine without a thread, inbox or event queue, for engine_run_request. It leaves the prefix
 * cache alone. */
llmc_status engine_open_inline(Session *session, const llmc_tokenizer *tok,
                               const llmc_engine_options *opt, Engine **out, llmc_error *err);
/* Receives one event of a request; it is valid during the call. Returns false to cancel the
 * request. */
typedef bool (*engine_event_fn)(void *user, const llmc_event *ev);
/* Run one request to its end on the caller's thread and pass each event to fn as its step makes it.
 * Other sequences of the session keep their pages: E_FULL if they leave too few. E_DEVICE: the
 * session refuses all further requests. */
llmc_status engine_run_request(Engine *e, const llmc_request *r, engine_event_fn fn, void *user,
                               llmc_error *err);
void engine_close(Engine *e, int drain_ms);
llmc_status engine_drain(Engine *e, int drain_ms, llmc_error *err);
llmc_status engine_submit(Engine *e, const llmc_request *r, int64_t *id, llmc_error *err);
llmc_status engine_next(Engine *e, int64_t id, int timeout_ms, llmc_event *ev, llmc_error *err);
void engine_cancel(Engine *e, int64_t id, bool forget);
int engine_fd(const Engine *e);
void engine_counts(Engine *e, llmc_counts *out);
/* A session of a smaller model of the same tokenizer, or of the head of this one (its plan takes
 * rows), which guesses as well; it must outlive the engine. Before the first request. */
llmc_status engine_set_draft_model(Engine *e, Session *draft_session, llmc_error *err);
/* For tests. Check all invariants after each step (call before the first request); a violation
 * fails every request with E_BUG. Hold the thread before its next step, so that what is submitted
 * meanwhile comes at once. */
void engine_set_check(Engine *e);
void engine_pause(Engine *e, bool paused);
/* Masks are made on a thread of their own while steps run, or not, whatever cores there are. Before
 * the first request. */
llmc_status engine_set_mask_thread(Engine *e, bool ahead, llmc_error *err);
/* The second model alone guesses, and all that it says runs. Before the first request. */
void engine_set_eager(Engine *e);
/* Guesses come from fn instead, and all of them run: up to `most` tokens to out behind tok [n],
 * their number. Before the first request. */
typedef int32_t (*engine_draft_fn)(void *user, const int32_t *tok, int32_t n, int32_t *out,
                                   int32_t most);
void engine_set_draft_fn(Engine *e, engine_draft_fn fn, void *user);

#endif
