/* Team or alone: decides whether the next job of a kind is split over all threads or run by the
 * caller.
 *
 * A thread that another process preempts inside a part delays the whole team. If each of two
 * threads has a processor for a share p of the time, the team does about 2 p^2 units of work per
 * unit of time, and a single thread p. So for p below one half the team is slower; with more
 * threads the difference is larger.
 *
 * While waits are short, the team is always used. If the caller waits so long for other threads
 * that it could have run their parts itself, it tries a window of jobs alone. After that the faster
 * mode is used, and the other mode is tried again after increasing numbers of windows. Results do
 * not depend on the mode. */
#include "runtime/threads/threads.h"

static const double WINDOW = 0.06,
                    /* seconds: WINDOW is the minimum duration of a window; after FORGET without a
                     * job, statistics are reset */
    FORGET = 10;
enum {
	JOBS = 3,
	STAY = 4,
	STAY_MOST = 16
}; /* minimum jobs per window; initial and largest number of windows between two trials */

bool
team_alone(TeamKind *k, double now)
{
	if (now - k->seen > FORGET)
		*k = (TeamKind){ 0 };
	k->seen = now;
	return k->alone;
}

/* Return the mode of the next window. */
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
