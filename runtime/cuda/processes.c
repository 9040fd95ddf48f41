/* Ranks that are processes of a launcher, a GPU each: NCCL between those of a stage, where all of them have it and it connects them. Else what they say goes
 * through the host's memory (hosted.c). A model has one communicator, for all its sessions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "runtime/comm/world.h"
#include "runtime/cuda/nccl.h"
#include "runtime/cuda/ways.h"

/* The library of this rank, of the version that all have */
static llmc_status
open_library(World *w, WaysWanted wanted, Nccl **out, llmc_error *err)
{
	llmc_error  why = { 0 };
	llmc_status status;
	char        version[16] = "";

	if (wanted == WAYS_UNKNOWN)
		status = error_set(&why, LLMC_E_INPUT, "LLMC_NCCL is \"%s\", expected auto, always or never", getenv("LLMC_NCCL"));
	else if (wanted == WAYS_OWN)
		status = error_set(&why, LLMC_E_MISSING, "LLMC_NCCL is \"never\"");
	else
		status = nccl_library(out, &why);
	TRY(world_agree(w, status, &why, err));
	snprintf(version, sizeof version, "%d", nccl_version(*out));
	return world_same(w, world_ranks(w), "NCCL", version, err);
}

/* Ranks of each stage meet where rank 0 says. */
static llmc_status
connect(World *w, Runtime *rt, Nccl *l, llmc_error *err)
{
	const Plan *p = rt->plan;
	CudaModel  *m = rt->model;
	CudaDevice *dev = &m->dev;
	NcclId      id[PLAN_MAX_RANKS] = { 0 };
	const size_t bytes = (size_t)p->stages * sizeof *id;
	llmc_error  why = { 0 };
	llmc_status status = LLMC_OK;

	for (int k = 0; k < p->stages && world_rank(w) == 0 && status == LLMC_OK; k++)
		status = nccl_id(l, &id[k], &why);
	TRY(world_agree(w, status, &why, err));
	if (!(world_rank(w) == 0 ? world_send(w, id, bytes) : world_receive(w, id, bytes)))
		return error_set(err, LLMC_E_DEVICE, "ranks of this job cannot be reached");
	status = nccl_connect(l, &dev, p->rank, 1, p->ranks, &id[p->stage], comm_timeout(), &why);
	return world_agree(w, status, &why, err);
}

llmc_status
cuda_meet(Runtime *rt, llmc_log_fn log, void *log_user, llmc_error *err)
{
	const WaysWanted wanted = ways_wanted();
	World           *w = rt->world;
	Nccl            *l = NULL;
	llmc_error       why = { 0 };

	if (!w || rt->plan->ranks < 2)
		return LLMC_OK;
	llmc_status status = open_library(w, wanted, &l, &why);
	if (status == LLMC_OK)
		status = connect(w, rt, l, &why);
	if (status == LLMC_OK) {
		((CudaModel *)rt->model)->nccl = l;
		return LLMC_OK;
	}
	nccl_abort(l);
	nccl_close(l);
	TRY(world_agree(w, wanted == WAYS_NCCL || wanted == WAYS_UNKNOWN ? status : LLMC_OK, &why, err)); /* who insists, insists for all */
	if (world_rank(w) == 0 && wanted != WAYS_OWN)
		log_line(log, log_user, LLMC_LOG_WARNING, "GPUs of this job talk through the host's memory, without NCCL: %s", why.text);
	return LLMC_OK;
}
