/* Team or alone: whether the next job of a kind is dealt to all threads or run by the caller.
 *
 * A thread that another process displaces inside a part holds up the whole team. If each of two
 * threads has a processor for the share p of the time, the team advances for about 2 p^2 of it and
 * a thread alone for p. So below a half the team is slower, and slower still with more threads.
 *
 * A team that waits little is never left. If the caller waits so long for others that it might have
 * done their parts in that time, it tries a window of jobs alone; from then on the mode whose jobs
 * took less time is in force, and the other one is tried again after some windows, at growing
 * distances. Results do not depend on the mode. */
#include "runtime/threads/threads.h"

static const double
    WINDOW = 0.06,
    FORGET = 10; /* seconds: of a window's jobs at least; without a job until all is forgotten */
enum {
	JOBS = 3,
	STAY = 4,
	STAY_MOST = 16
}; /* a window has so many jobs at least; windows between two trials */

bool
team_alone(TeamKind *k, double now)
{
	if (now - k->seen > FORGET)
		*k = (TeamKind){ 0 };
	k->seen = now;
	return k->alone;
}

/* The mode of the next window */
static bool
choose(TeamKind *k)
{
	const bool now = k->alone, known = k->mean[!now] > 0,
	           other_is_better = known && k->mean[!now] < k->mean[now];

	if (k->trial) {
		k->trial = false;
		k->stay = !other_is_better          ? STAY
		          : k->stay < STAY_MOST / 2 ? 2 * k->stay
		                                    : STAY_MOST;
		k->left = k->stay;
		return other_is_better ? !now : now;
	}
	if (!now && k->held <= 0)
		return now; /* the usual case */
	if (known && k->left-- > 0)
		return now;
	k->trial = true;
	return !now;
}

void
team_ran(TeamKind *k, double end, double seconds, double held)
{
	k->seen = end;
	k->window += seconds;
	k->held += held;
	if (++k->jobs < JOBS || k->window < WINDOW)
		return;
	double mean = k->window / k->jobs, *old = &k->mean[k->alone];
	*old = *old > 0 && !k->trial ? 0.5 * (*old + mean) : mean;
	k->alone = choose(k);
	k->window = k->held = 0;
	k->jobs = 0;
}
