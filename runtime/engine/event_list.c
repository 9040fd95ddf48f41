#include <stdlib.h>

#include "runtime/engine/engine_internal.h"

void
event_list_add(EventList *l, Event *ev)
{
	ev->next = NULL;
	*(l->last && l->first ? &l->last->next : &l->first) = ev;
	l->last = ev;
}

void
event_list_free(EventList *l)
{
	for (Event *v = l->first, *next; v; v = next) {
		next = v->next;
		free(v);
	}
	*l = (EventList){ 0 };
}
