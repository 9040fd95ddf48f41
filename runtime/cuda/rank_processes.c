/* Ranks that are processes with one GPU each: NCCL within a stage, if all ranks have it and it
 * connects them. Otherwise collectives go through host memory (host_staged_comm.c). A model has one
 * communicator for all its sessions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "runtime/comm/mpi_world.h"
#include "runtime/cuda/nccl.h"
#include "runtime/cuda/comm_algorithm.h"

/* Open this rank's library and check that all ranks have the same version. */
static llmc_status
open_library(MpiWorld *w, CommAlgorithmMode wanted, Nccl **out, llmc_error *err)
{
	llmc_error why = { 0 };
	llmc_status status;
	char version[16] = "";

	if (wanted == ALGO_MODE_UNKNOWN)
		status = error_set(&why, LLMC_E_INPUT,
		                   "LLMC_NCCL is \"%s\", expected auto, always or never",
		                   getenv("LLMC_NCCL"));
	else if (wanted == ALGO_MODE_OWN)
		status = error_set(&why, LLMC_E_MISSING, "LLMC_NCCL is \"never\"");
	else
		status = nccl_library(out, &why);
	TRY(mpi_world_agree(w, status, &why, err));
	snprintf(version, sizeof version, "%d", nccl_version(*out));
	return mpi_world_check_same(w, mpi_world_ranks(w), "NCCL", version, err);
}

/* Connect the ranks of each stage; rank 0 creates the id. */
static llmc_status
connect(MpiWorld *w, Runtime *rt, Nccl *l, llmc_error *err)
{
	const Plan *p = rt->plan;
	CudaModel *m = rt->model;
	CudaDevice *dev = &m->dev;
	NcclId id[PLAN_MAX_RANKS] = { 0 };
	const size_t bytes = (size_t)p->stages * sizeof *id;
	llmc_error why = { 0 };
	llmc_status status = LLMC_OK;

	for (int k = 0; k < p->stages && mpi_world_rank(w) == 0 && status == LLMC_OK; k++)
		status = nccl_id(l, &id[k], &why);
	TRY(mpi_world_agree(w, status, &why, err));
	if (!(mpi_world_rank(w) == 0 ? mpi_world_broadcast(w, id, bytes)
	                             : mpi_world_receive(w, id, bytes)))
		return error_set(err, LLMC_E_DEVICE, "ranks of this job cannot be reached");
	status = nccl_connect(l, &dev, p->rank, 1, p->ranks, &id[p->stage], comm_timeout(), &why);
	return mpi_world_agree(w, status, &why, err);
}

llmc_status
cuda_connect_processes(Runtime *rt, llmc_log_fn log, void *log_user, llmc_error *err)
{
	const CommAlgorithmMode wanted = comm_algorithm_mode();
	MpiWorld *w = rt->world;
	Nccl *l = NULL;
	llmc_error why = { 0 };

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
	TRY(mpi_world_agree(
	    w, wanted == ALGO_MODE_NCCL || wanted == ALGO_MODE_UNKNOWN ? status : LLMC_OK, &why,
	    err)); /* LLMC_NCCL=always on one rank applies to all ranks */
	if (mpi_world_rank(w) == 0 && wanted != ALGO_MODE_OWN)
		log_line(log, log_user, LLMC_LOG_WARNING,
		         "GPUs of this job communicate through host memory, without NCCL: %s",
		         why.text);
	return LLMC_OK;
}
