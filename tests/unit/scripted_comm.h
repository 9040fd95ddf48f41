/* An endpoint of rank 1 of 2 whose messages from rank 0 come from a script: a function that fills
 * the buffer that the follower receives into. Other calls succeed and do nothing. */
#ifndef TESTS_UNIT_SCRIPTED_COMM_H
#define TESTS_UNIT_SCRIPTED_COMM_H

#include "runtime/comm/comm_internal.h"

typedef struct ScriptedComm {
	Comm c;
	/* returns false if rank 0 has ended the group */
	bool (*fill)(void *user, void *data, size_t n);
	void *user;
	bool over;
} ScriptedComm;

static bool
scripted_receive(Comm *c, void *data, size_t n)
{
	ScriptedComm *s = (ScriptedComm *)c;

	return !s->over && s->fill(s->user, data, n);
}

static bool
scripted_send(Comm *c, const void *data, size_t n)
{
	(void)data, (void)n;
	return !((ScriptedComm *)c)->over;
}

static bool
scripted_gather(Comm *c, const void *data, size_t n, void *all)
{
	(void)all;
	return scripted_send(c, data, n);
}

static void
scripted_end(Comm *c)
{
	((ScriptedComm *)c)->over = true;
}

static bool
scripted_ended(const Comm *c)
{
	return ((const ScriptedComm *)c)->over;
}

static void
scripted_why(const Comm *c, char *text, size_t n)
{
	(void)c, (void)text, (void)n;
}

static void
scripted_open(ScriptedComm *s, bool (*fill)(void *user, void *data, size_t n), void *user)
{
	static const CommOps ops = { .send = scripted_send,
		                     .receive = scripted_receive,
		                     .gather_to_root = scripted_gather,
		                     .pipe_send = scripted_send,
		                     .pipe_receive = scripted_receive,
		                     .end = scripted_end,
		                     .ended = scripted_ended,
		                     .why = scripted_why };
	const CommShape shape = { .ranks = 2, .team = 2, .parts = 1 };

	*s = (ScriptedComm){ .c = comm_of(&ops, 1, shape), .fill = fill, .user = user };
}

#endif
