"""Inferencer: computes the outputs of a program function or an exported model for given data."""

from __future__ import annotations

import functools
import html
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fluid import errors
from fluid._util.known_names import KnownAttributes
from fluid._util.paths import is_address
from fluid.checkpoint import RENAME_THEM, ArraySource, PathLike, Rename, newest_checkpoint, source_of
from fluid.core import TEST, Array, LoDTensor, NestedSequenceBatch, Program, SequenceBatch, fitting, not_copied
from fluid.distributed import group
from fluid.param_attr import Shardings
from fluid.place import Parallel, Place
from fluid.reader import Table, reader_misuse
from fluid.reader.adapters import arrays, minibatches
from fluid.reader.base import ReaderLike, is_reader
from fluid.reader.buckets import Buckets, Ladders
from fluid.reader.columns import check_feed, read_feed
from fluid.reader.converter import Converter
from fluid.reader.data_frame import check_reader
from fluid.reader.feeder import FeedOrder
from fluid.reader.pipeline import InputPipeline
from fluid.runtime import Request, Results, Session, bind
from fluid.runtime.fetch import Fetch, as_array, check_fetch, split_names
from fluid.runtime.prediction import (
    Ensemble,
    InferencePlan,
    are_constants,
    constant,
    continued,
    ensemble_session,
    needed_feeds,
    on_host,
    order_of_results,
    stream,
)
from fluid.runtime.seeds import Draw, Seeds
from fluid.runtime.session import ShowsProgram

_ROWS = 256  # the number of rows that `predict` puts in a minibatch if its data is a table of raw rows
_SEQUENCES = (SequenceBatch, NestedSequenceBatch)


class Inferencer(ShowsProgram, KnownAttributes):
    """A model for inference: a program function, or an exported model, with its parameters.

    Programs run in test mode.

    Batches are padded to the next power of two, so that many batch sizes need few compilations. Padded rows are removed
    from the outputs. A program runs unpadded with `bucket=False`, if an output has no batch dimension, or if its rows
    depend on each other, which follows from the equations of the program.

    A program that draws random numbers draws new ones in each call, and in each Inferencer; see `docs/sampling.md`.

    Args:
      infer_func: the program function that the training program also calls; None for an exported model, or a folder of
        PaddlePaddle model files.
      param_path: a file of `trainer.save_params`, one that ends in ".safetensors", or an exported model, whose
        parameters are read. It may hold more parameters than the program has. Without `infer_func`: an exported model
        of `trainer.save_inference_model` or `fluid.export.load`, or a folder of PaddlePaddle model files, see
        `fluid.io.load_inference_model`.
      params: arrays by name, such as `trainer.params`, instead of a file. For a `fluid.Population`, the outputs are
        means over its members; for `population.each`, the outputs of all members, `[batch, members, ...]`.
      place: a device, see `fluid.place.device_of`; or with `parallel` the devices, see `fluid.place.devices_of`.
      bucket: whether to pad batches to the next power of two.
      precision: "bfloat16" or "float16" for computation in that dtype, see `fluid.Program`.
      buckets: the sizes to which sequences are padded, as for `fluid.Trainer`; None for powers of two, so that the
        results of a call never depend on earlier calls.
      rename: a mapping from names in the file to names of the program, see `fluid.io.load_params`.
      names: names and globs of the arrays to load, such as `["backbone/*"]`; all other arrays have their initial
        values. None for all.
      entry: the name of the entry point, for an exported model with several entry points.
      checkpoint: the `checkpoint_dir` of a Trainer, a folder or an address, instead of a file. The parameters come from
        the newest complete checkpoint.
      url: the address of a server, instead of all arguments above: `fluid.serve`, or another implementation of the
        Open Inference Protocol. "http://host:8000", or for one model "http://host:8000/v2/models/digits".
      token: the token that the server requires, or None.
      seed: the seed of the random numbers of a program that samples, from 0 to 2**64 - 1. Two Inferencers with equal
        seeds draw equal sequences of numbers. None takes a seed from the operating system.
      parallel: the distribution over devices, as for `fluid.Trainer`; not for an exported model, which runs on one
        device.
      shardings: the shardings of parameters, as for `fluid.Trainer`.

    Attributes:
      program: the discovered Program; absent for a model at a URL.
      session: the Session that runs the program; absent for a model at a URL.
      remote: the model at the URL, or None.
      seeds: the sequence of seeds of the calls; `seeds.first` is the argument `seed`, or the seed from the system.

    Raises:
      ArgumentError: the seed is not an integer from 0 to 2**64 - 1.
      ParameterFileError: the file does not exist, or is not a parameter file.
      ParameterError: parameters are missing, or have other shapes or dtypes than in this program.
      CheckpointError: the folder of checkpoints does not exist, or has no complete checkpoint.
      ArtifactError: the exported model is missing, damaged, of a newer version, or for other devices.
      RemoteError: the server does not answer, or refuses.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[2])
      ...     return fluid.layers.fc(x, size=1)
      >>> params = {"fc_0.w_0": np.ones((2, 1), "float32"), "fc_0.b_0": np.zeros(1, "float32")}
      >>> result, = fluid.Inferencer(program, params=params).infer({"x": [[1, 2], [3, 4]]})
      >>> result.tolist()
      [[3.0], [7.0]]
    """

    __reduce_ex__ = not_copied(
        "Inferencer",
        'make one in each process of a file: trainer.save_inference_model("net.fluid"), then '
        'fluid.Inferencer(param_path="net.fluid")',
    )

    @fitting("fluid.Inferencer")
    def __init__(
        self,
        infer_func: Callable[[], Any] | Program | None = None,
        param_path: PathLike | Any = None,
        params: Mapping[str, Any] | Ensemble | None = None,
        place: Place = None,
        bucket: bool = True,
        precision: str | None = None,
        buckets: Ladders = None,
        rename: Rename = None,
        entry: str | None = None,
        *,
        checkpoint: PathLike | None = None,
        url: str | None = None,
        token: str | None = None,
        seed: int | None = None,
        parallel: Parallel = None,
        shardings: Shardings | None = None,
        names: str | Sequence[str] | None = None,
    ):
        self.seeds = Seeds("Inferencer", seed)
        self.remote = None
        if url is not None:
            others = (infer_func, param_path, params, place, precision, buckets, rename, entry, checkpoint)
            if parallel or any(given is not None for given in (*others, shardings, names)):
                raise errors.ArgumentTypeError(
                    'a model behind a URL takes nothing else: fluid.Inferencer(url="http://...")'
                )
            from fluid.serving.client import RemoteModel  # imported on use, because few programs call a server

            self.remote = RemoteModel(url, token, seed)
            return
        if token is not None:
            raise errors.ArgumentTypeError(
                "token= is for a model behind a server, and here the model itself is given; leave it out, or ask the "
                'server: fluid.Inferencer(url="http://127.0.0.1:8000", token=token)'
            )
        if sum(source is not None for source in (param_path, params, checkpoint)) != 1:
            raise errors.ArgumentTypeError(
                "an Inferencer needs parameters, from one source: "
                'fluid.Inferencer(infer_func, param_path="digits.params"), (infer_func, params=trainer.params) or '
                '(infer_func, checkpoint="checkpoints")'
            )
        if infer_func is None and (saved := _saved_by_the_original(param_path)) is not None:
            infer_func = saved
            params = saved.params
        not_here = (rename, parallel, shardings, names)
        if infer_func is None:
            self.session = Session(_exported(param_path, entry, place, (precision, *not_here)), place=place)
        elif (found := ensemble_session(params, infer_func, place, precision, not_here)) is not None:
            self.session = found
        else:
            initial = names is not None
            self.session = Session(
                infer_func, place=place, precision=precision, parallel=parallel, shardings=shardings, initial=initial
            )
            given: Any = param_path if params is None else params
            source = _source(given) if checkpoint is None else newest_checkpoint(checkpoint)
            self.session._take_params(source.renamed(rename), names=names, allow_extra=True, advice=RENAME_THEM)
        self.session.engine.constants = are_constants(self.session.engine)
        self.program = next(iter(self.session.programs.values()))
        if seed is not None:
            self.seeds.of("Inferencer", self.program, seed)
        elif (mesh := self.session.engine.layout.mesh) is not None and mesh.is_multi_process and self.program.draws:
            # In a multi-process run, all processes compute one common result, so they all use the seed of the first
            # process.
            self.seeds = Seeds("Inferencer", group().exchange("the seed of an Inferencer", self.seeds.first)[0])
        self._bucket = bucket
        ladders = self.program.buckets if buckets is None else buckets
        self._buckets = Buckets(self.program.feeds, ladders, max_compilations=None)
        self._plans: dict[Any, InferencePlan] = {}

    @property
    def table(self) -> Table | None:
        """The Table that converts raw rows to feeds (see `fluid.reader.frame`); None for a model without a table."""
        found: Table | None = self.program.table if self.remote is None else self.remote.signature.table
        return found

    def infer(
        self,
        feed: Mapping[str, Any] | Any,
        fetch: Fetch | None = None,
        return_numpy: bool = True,
        *,
        seed: int | None = None,
    ) -> Results:
        """Run the program on data.

        Args:
          feed: by name: arrays or nested lists `[batch, ...]`; for sequences lists of rows, SequenceBatches or
            LoDTensors. Any other named value can be given as well, and replaces the computed value; a scalar replaces a
            whole array. Feeds that the results do not depend on may be omitted. For a program with one feed, the data
            of that feed alone is enough. A model with a table (see `fluid.reader.frame`) also accepts a DataFrame of
            raw rows, or raw columns by name.
          fetch: names of values to return instead of the outputs.
          return_numpy: False leaves arrays on the device, as JAX arrays, and returns sequences as LoDTensors.
          seed: the seed of the random numbers of this call, from 0 to 2**64 - 1. Calls with equal seeds draw equal
            numbers, independently of earlier calls. A Session, an exported model and a server draw equal numbers with
            this seed. None draws new numbers in each call.

        Returns:
          Results: one value for each output, or each name in `fetch`: an array `[batch, ...]`; for sequences a
          SequenceBatch or NestedSequenceBatch of NumPy arrays, or else a LoDTensor.

        Raises:
          FeedError: the data does not match the feeds.
          UnknownNameError: the program has no such feed or value.
          RemoteError: the server at the URL does not answer, or refuses.
          ArgumentError: the seed is not an integer from 0 to 2**64 - 1.
        """
        if self.remote is not None:
            named = self._encoded(feed) if self._is_raw(feed) else feed
            named = named if isinstance(named, Mapping) else self._named(named)
            return self.remote.infer(named, fetch, return_numpy, seed)
        if self._is_raw(feed):
            feed = self._encoded(feed)
        if not isinstance(feed, Mapping):
            feed = self._named(feed)
        plan = self._plan(feed, fetch)
        feeds = {name: read_feed(spec, feed[name]) for name, spec in plan.feeds}
        if plan.ragged:
            feeds = self._buckets.pad(feeds)
        overrides = {n: as_array(feed[n]) for n in plan.overrides} if plan.overrides else {}
        # copy the data, because the caller may change its arrays while the step is still in flight
        if not return_numpy:
            feeds = self.session.engine.layout.take(feeds)
            overrides = self.session.engine.layout.take(overrides)
        draw = None if seed is None else self.session.engine.draw(self.seeds.of("infer", self.program, seed))
        values = plan.begin(feeds, overrides, draw)()
        if return_numpy:
            values = on_host(values)
        else:
            values = [LoDTensor.of(v) if isinstance(v, _SEQUENCES) else self.session.engine.place(v) for v in values]
        return Results(values, plan.names)

    def stream(
        self, feed: Mapping[str, Any] | Any, fetch: str | Sequence[str] | None = None, *, seed: int | None = None
    ) -> Iterator[Results]:
        """Run the program repeatedly on the sequences that it extends, and yield the outputs of each run.

        Outputs with the names of feeds replace these feeds in the next run. The stream ends when no sequence grows any
        more. For example, a program that writes 8 ids with `layers.generate` yields a text in parts of 8 ids. A server
        sends each part as soon as it is computed.

        Args:
          feed: the feeds of the first run, as for `infer`.
          fetch: names of the outputs to yield; all by default.
          seed: the seed of the random numbers of every run, as for `infer`. A text from `layers.generate` then has the
            same ids as a text that a single run with this seed writes.

        Returns:
          An iterator of Results, as `infer` returns them. To stop after some parts, use `itertools.islice`.

        Raises:
          ArgumentError: no output is a sequence with the name of a feed.
          FeedError: the data does not match the feeds; or a sequence grows longer than the server accepts; this error
            comes after the earlier parts.
          UnknownNameError: the program has no such feed or output.
          RemoteError: the server at the URL does not answer, or refuses.

        Example:
          >>> import fluid
          >>> def program():
          ...     text = fluid.layers.data("text", shape=[1], dtype="int64", lod_level=1)
          ...     def step(ids, state):
          ...         return fluid.layers.one_hot((ids + 1) % 5, 5), state
          ...     more = fluid.layers.generate(step, text, length=2, temperature=0, end_id=4)
          ...     return {"text": fluid.layers.sequence_concat([text, more]), "more": more}
          >>> parts = fluid.Inferencer(program, params={}).stream({"text": [[0, 1]]}, fetch="more")
          >>> [row.ravel().tolist() for part in parts for row in part.more.rows()]
          [[2, 3], [4]]
        """
        if not isinstance(feed, Mapping):
            feed = self._named(feed)
        if self.remote is not None:
            return self.remote.stream(feed, fetch, seed)
        return self._parts(feed, fetch, seed)

    def _parts(self, feed: Mapping[str, Any], fetch: str | Sequence[str] | None, seed: int | None) -> Iterator[Results]:
        feeds: dict[str, Any] | None = {
            name: check_feed(self.program.feeds[name], value) if name in self.program.feeds else value
            for name, value in feed.items()
        }
        if seed is None and self.program.draws:
            seed = self.seeds.next()
        while feeds is not None:
            results = self.infer(feeds, seed=seed)
            feeds = continued(feeds, dict(zip(results.names or (), results, strict=False)))
            if feeds is not None:
                names = [fetch] if isinstance(fetch, str) else fetch
                yield results if names is None else Results([results[name] for name in names], names)

    def __call__(self, *data: Any, **named: Any) -> Results:
        """Raise ArgumentTypeError: an Inferencer is not callable. The message recommends the method `infer`."""
        feeds = self.program.feeds if self.remote is None else self.remote.signature.feeds
        call = "data" if len(feeds) == 1 else reader_misuse.spelled(feeds)
        raise errors.ArgumentTypeError(f"an Inferencer is no function; ask it: results = inferencer.infer({call})")

    def __repr__(self) -> str:
        return super().__repr__() if self.remote is None else f"Inferencer({self.remote.name} at {self.remote.url})"

    def _repr_html_(self) -> str:
        return super()._repr_html_() if self.remote is None else html.escape(repr(self))

    @fitting("inferencer.predict")
    def predict(
        self,
        reader: ReaderLike,
        fetch: Fetch | None = None,
        feed_order: FeedOrder = None,
        *,
        feed: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> Iterator[Results]:
        """Run the program over one pass of a reader (all its minibatches, once); yield the results of each minibatch.

        Results come in the order of the reader, and are not stored, so memory use is bounded. The reader is one
        minibatch ahead of the results.

        Args:
          reader: minibatches, as for `Trainer.train`. Feeds that the results do not depend on are optional. A model
            with a table (see `fluid.reader.frame`) also accepts a DataFrame of raw rows.
          fetch: names of values to return instead of the outputs.
          feed_order: the feed of each field of a row, as for `Trainer.train`. If rows are dicts, columns that are not
            in `feed_order` are ignored, such as a label that the program does not declare.
          feed: constant feeds for every minibatch, as for `Session.run`. Each one is a feed that the reader does not
            provide, or replaces a named value or a parameter; a scalar replaces a whole array.
          seed: the seed of the random numbers of this pass; passes with equal seeds draw equal numbers. The minibatches
            draw the same numbers as consecutive calls of an Inferencer with this seed. None draws new numbers in each
            pass.

        Returns:
          An iterator of Results, as `infer` returns them, one for each minibatch. Reading begins with the first
          request for results. Its methods `to_pandas` and `to_csv` collect the results of all rows in a table.

        Raises:
          ArgumentTypeError: `reader` is not a reader; data belongs to `infer`.
          UnknownNameError: a name in `fetch` or `feed` is not a name of the program.
          ReaderError: the reader is empty; raised while reading.
          FeedError: the data does not match the feeds; raised while reading.

        Example:
          >>> import fluid, numpy as np
          >>> def program():
          ...     return {"sum": fluid.layers.reduce_sum(fluid.layers.data("x", shape=[2]), dim=1)}
          >>> data = fluid.reader.arrays(np.arange(6).reshape(3, 2), batch_size=2)
          >>> [results["sum"].tolist() for results in fluid.Inferencer(program, params={}).predict(data)]
          [[1.0, 5.0], [9.0]]
        """
        if self.remote is None and self._is_raw(reader):
            reader = arrays(self._encoded(reader), batch_size=_ROWS)
        if reader_misuse.is_data(reader) or isinstance(reader, Mapping):
            raise errors.ArgumentTypeError(
                "predict needs a reader, found data; all of it at once: inferencer.infer(data); by minibatches: "
                "inferencer.predict(fluid.reader.arrays(data, batch_size=256))"
            )
        if self.remote is not None:
            raise errors.ArgumentTypeError(
                "predict runs where the model is; ask a server for each minibatch: "
                "[inferencer.infer(minibatch) for minibatch in reader()]"
            )
        names = None if fetch is None else check_fetch(self.program, fetch)
        check_reader("predict", reader, self.program.table)
        if feed_order is None and getattr(reader, "table", None) is not None:
            # read only the feeds of the model: rows of training data also contain the label
            feed_order = list(self.program.feeds)
        source = minibatches(reader, order_of_results(self.program, names))
        fixed = constant(self.session, self.program, feed)
        needed = needed_feeds(self.session, self.program, names, fixed)
        convert = Converter(self.session.engine, self.program.feeds, feed_order, self._buckets, needed)
        plan = self._plan((*needed, *fixed.feeds, *fixed.overrides), fetch, may_pad=not fixed.has_rows)
        if seed is not None:
            self.seeds.of("predict", self.program, seed)
        seeds = Seeds("predict", seed) if seed is not None and self.program.draws else None

        def begin(minibatch: Any) -> Callable[[], Results]:
            draw = None if seeds is None else self.session.engine.draw(seeds.next())
            values = plan.begin({**minibatch, **fixed.feeds}, fixed.overrides, draw)
            return lambda: Results(on_host(values()), plan.names)

        return stream(InputPipeline(source, [convert]), begin, self.program.table)

    def _is_raw(self, feed: Any) -> bool:
        return self.table is not None and self.table.is_raw(feed)

    def _encoded(self, rows: Any) -> dict[str, Any]:
        """Convert raw rows, such as a DataFrame, to the model's feeds by the `fluid.reader.Table` of the model.

        Drop columns that are no feeds, such as the label.
        """
        assert self.table is not None
        feeds = self.program.feeds if self.remote is None else self.remote.signature.feeds
        return {name: array for name, array in self.table(rows).items() if name in feeds}

    def _named(self, data: Any) -> Mapping[str, Any]:
        """Convert data without feed names, or a DataFrame, to a dict by feed name.

        The columns of a DataFrame are the feeds. Other data belongs to the only feed of the program.
        """
        feeds = self.program.feeds if self.remote is None else self.remote.signature.feeds
        columns = reader_misuse.columns_of(data) if reader_misuse.is_frame(data) else None
        if columns is not None and (len(feeds) > 1 or feeds.keys() <= columns.keys()):
            return columns
        if is_reader(data):
            raise errors.ArgumentTypeError(
                f"infer needs data, found a reader ({type(data).__name__}): for results in inferencer.predict(reader): "
                f"... gives those of each minibatch"
            )
        if len(feeds) != 1 or data is None:
            raise errors.ArgumentTypeError(
                f"infer found {type(data).__name__}, expected data for {', '.join(map(repr, feeds)) or 'no feed'} by "
                f"name: inferencer.infer({reader_misuse.spelled(feeds)})"
            )
        return dict.fromkeys(feeds, data if columns is None else np.asarray(data))

    def _plan(self, feed: Iterable[str], fetch: Fetch | None, may_pad: bool = True) -> InferencePlan:
        """Return the plan, a prepared step, for calls with equal names of feeds and results; a call is planned once."""
        given = tuple(feed)
        key = given if fetch is None else (*given, None, *([fetch] if isinstance(fetch, str) else fetch))
        known = self._plans.get((key, may_pad))
        if known is None:
            known = self._plans[key, may_pad] = self._new_plan(given, fetch, may_pad)
        return known

    def _new_plan(self, feed: Sequence[str], fetch: Fetch | None, may_pad: bool) -> InferencePlan:
        program = self.program
        names = None if fetch is None else check_fetch(program, fetch)
        given_feeds, overrides = split_names(program, feed)
        feeds = [(n, program.feeds[n]) for n in given_feeds]
        request = Request(TEST, names, given_feeds, overrides)
        wanted = program.outputs if names is None else [self._array(n) for n in names]
        given = [*(Array(s.shape, s.dtype) for _, s in feeds), *(self._array(n) for n in overrides)]
        padded = self._bucket and bool(given) and all(a.shape[:1] == (None,) for a in (*wanted, *given))
        step = bind(self.session.engine, program, request)
        names = program.output_names if fetch is None else names
        draw = self._draw if program.draws else None
        # only a request for the outputs from all feeds is a use of the program as it is written, which may be a mistake
        warned = program if fetch is None and len(feeds) == len(program.feeds) else None
        mixing = functools.partial(program.mixing, request.fetch, overrides)
        return InferencePlan(
            feeds, overrides, step, padded and may_pad, names, program.batch_sizes, draw, mixing, warned
        )

    def _draw(self) -> Draw | None:
        return self.session.engine.draw(self.seeds.next())

    def _array(self, name: str) -> Array:
        program = self.program
        if name in (program.output_names or ()):
            return program.outputs[(program.output_names or ()).index(name)]
        spec = program.parameters.get(name) or program.states.get(name)
        if spec is not None:
            return Array(spec.shape, spec.dtype)
        return program.values.get(program.aliases.get(name, name), Array((), "float32"))


def _exported(path: Any, entry: str | None, place: Place, refused: Sequence[Any]) -> Program:
    if path is None or any(given not in (None, False) for given in refused):
        raise errors.ArgumentTypeError(
            "without infer_func, an Inferencer runs an exported model as it is, on one device, "
            'fluid.Inferencer(param_path="digits.fluid"); params=, checkpoint=, names=, parallel= and '
            "shardings= belong to a function, precision= and rename= to save_inference_model"
        )
    from fluid import export  # imported on use, because most programs do not load exported models

    return export.load(path).program(entry, place)


def _source(given: Any) -> ArraySource:
    """Return the Source (named arrays) of parameters in a file, in an exported model, or in a mapping of arrays."""
    if isinstance(given, Mapping):
        return source_of(given)
    from fluid import export  # imported on use, because most programs do not load exported models

    is_path = isinstance(given, str | os.PathLike) and not is_address(given)
    if not isinstance(given, export.Artifact) and not (is_path and export.is_artifact(given)):
        return source_of(given)
    found = export.load(given)
    return ArraySource(found.arrays, str(found.path), table=found.table)


def _saved_by_the_original(path: Any) -> Any:
    from fluid.compat import paddle_files  # imported on use, because few programs load PaddlePaddle models

    return paddle_files.load_inference_model(path).program if paddle_files.is_inference_model(path) else None
