/* The engine behind the llmc_engine interface: one thread drives a session through the scheduler.
 * Callers submit requests and take events from any thread.
 *
 *   scheduler.c       chooses what runs in a step
 *   request.c         a request: copy of the caller's struct, its choices, detokenised output
 *   event_list.c      lists of events
 *   events.c          event queues and the functions that callers use
 *   draft_model.c     draft tokens of a second model
 *   grammar_masks.c   grammar masks, computed while a step runs
 *   mtp_head.c        rows of the model as input of its MTP head
 *   engine.c          the thread: inbox, step, sampling, cancellation, deadlines
 *   inline.c          one request on the caller's thread, for llmc_generate
 *   idle_call.c       a call that runs while no request runs, such as an exchange of weights
 *   engine_open.c     opening and closing; the scheduler's interface to the session
 *   histogram.c       counters and histograms */
#ifndef LLMC_RUNTIME_ENGINE_H
#define LLMC_RUNTIME_ENGINE_H

#include "runtime/runtime.h"

typedef struct Engine Engine;

/* Return the limits of the engine's session: the caller's, with the engine's defaults. */
llmc_limits engine_limits(const Plan *plan, const llmc_engine_options *opt);
/* Open an engine. The session (opened with engine_limits) and the tokenizer (may be NULL) must
 * outlive it. */
llmc_status engine_open(Session *session, const llmc_tokenizer *tok, const llmc_engine_options *opt,
                        Engine **out, llmc_error *err);
/* Open an engine without a thread, inbox or event queue, for engine_run_request. It does not use
 * the prefix cache. */
llmc_status engine_open_inline(Session *session, const llmc_tokenizer *tok,
                               const llmc_engine_options *opt, Engine **out, llmc_error *err);
/* Callback for one event of a request; the event is valid during the call. Returns false to cancel
 * the request. */
typedef bool (*engine_event_fn)(void *user, const llmc_event *ev);
/* Run one request to its end on the caller's thread and pass each event to fn as its step makes it.
 * Other sequences of the session keep their pages; E_FULL if the free pages are too few. E_DEVICE:
 * the session refuses all further requests. */
llmc_status engine_run_request(Engine *e, const llmc_request *r, engine_event_fn fn, void *user,
                               llmc_error *err);
void engine_close(Engine *e, int drain_ms);
llmc_status engine_drain(Engine *e, int drain_ms, llmc_error *err);
llmc_status engine_submit(Engine *e, const llmc_request *r, int64_t *id, llmc_error *err);
llmc_status engine_next(Engine *e, int64_t id, int timeout_ms, llmc_event *ev, llmc_error *err);
void engine_cancel(Engine *e, int64_t id, bool forget);
int engine_fd(const Engine *e);
/* Run fn on the engine's thread while no request runs, and return its status. Running requests
 * finish first, or are cancelled if `cut`; requests that are submitted meanwhile wait in order.
 * E_RANGE: another call waits. The engine must not be closed during the call. */
llmc_status engine_call_when_idle(Engine *e, bool cut,
                                  llmc_status (*fn)(void *user, llmc_error *err), void *user,
                                  llmc_error *err);
void engine_counts(Engine *e, llmc_counts *out);
/* Use draft_session for draft tokens, before the first request. It runs a smaller model with the
 * same tokenizer, or the MTP head of this one (its plan takes rows). It must outlive the engine. */
llmc_status engine_set_draft_model(Engine *e, Session *draft_session, llmc_error *err);
/* For tests. engine_set_check, called before the first request, checks all invariants after each
 * step; a violation fails every request with E_BUG. engine_pause holds the thread before its next
 * step, so that requests submitted meanwhile join the same step. */
void engine_set_check(Engine *e);
void engine_pause(Engine *e, bool paused);
/* Set whether grammar masks are computed on a thread of their own while steps run, instead of
 * deciding by the number of cores. Call it before the first request. */
llmc_status engine_set_mask_thread(Engine *e, bool ahead, llmc_error *err);
/* Take draft tokens from the second model only and run all of them. Call it before the first
 * request. */
void engine_set_eager(Engine *e);
/* Take draft tokens from fn and run all of them. fn receives tok [n], writes up to `most` tokens to
 * out and returns their number. Call engine_set_draft_fn before the first request. */
typedef int32_t (*engine_draft_fn)(void *user, const int32_t *tok, int32_t n, int32_t *out,
                                   int32_t most);
void engine_set_draft_fn(Engine *e, engine_draft_fn fn, void *user);

#endif
