"""Inferencer: computes the outputs of a program function from data."""

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fluid import errors
from fluid.core import TEST, Array, LoDTensor, NestedSequenceBatch, Program, SequenceBatch, fitting, not_copied
from fluid.distributed import group
from fluid.missing import SpelledElsewhere
from fluid.param_attr import Shardings
from fluid.place import Parallel, Place
from fluid.reader import data_sets
from fluid.reader.adapters import minibatches
from fluid.reader.base import ReaderLike, is_reader
from fluid.reader.buckets import Buckets, Ladders
from fluid.reader.columns import read_feed
from fluid.reader.converter import Converter
from fluid.reader.feeder import FeedOrder
from fluid.reader.pipeline import InputPipeline
from fluid.runtime import Request, Results, Session
from fluid.runtime.compiled_step import bind
from fluid.runtime.fetch import Fetch, as_array, check_fetch, split_names
from fluid.runtime.prediction import (
    Answer,
    Ensemble,
    Plan,
    constant,
    ensemble_session,
    needed_feeds,
    on_host,
    order_of_results,
    stream,
)
from fluid.runtime.repr import ShowsProgram
from fluid.runtime.seeds import Draw, Seeds
from fluid.storage import RENAME_THEM, PathLike, Rename, newest_checkpoint, source_of

_SEQUENCES = (SequenceBatch, NestedSequenceBatch)
_PLACE = 'fluid.Inferencer(infer_func, param_path, place="gpu:0")'
_LOAD = "fluid.Inferencer(infer_func, params=arrays), or inferencer.session.load_params(source)"
_ANSWERS = 8  # so many shapes are answered with the least Python


class Inferencer(ShowsProgram, SpelledElsewhere):
    """Computes the outputs of a program function, or of an exported model, from data, in test mode.

    Batches are padded to the next power of two, so that many batch sizes need few compilations, and outputs are cut
    back to the examples that were given. A program runs unpadded if its examples depend on each other, which shows when
    two different paddings give different results; if an output has no batch dimension; or with `bucket=False`.

    A program that draws random numbers draws other ones in each call, and in each Inferencer; see `docs/sampling.md`.

    Args:
      infer_func: the program function, the same that the training program calls; None for an exported model, or one
        that the original saved.
      param_path: a file of `trainer.save_params`, or one that ends in ".safetensors". It may hold more parameters than
        the program has. Without `infer_func`, a file of `trainer.save_inference_model`, or what `fluid.artifact.load`
        made of it; or the folder of a model that the original saved, see `fluid.io.load_inference_model`.
      params: arrays by name, such as `trainer.params`, instead of a file. Of a `fluid.Population` the outputs are means
        over its members; of `population.each` they are those of each, `[batch, members, ...]`.
      place: a device, see `fluid.place.device_of`; or with `parallel` the devices, see `fluid.place.devices_of`.
      bucket: whether to pad batches.
      precision: "bfloat16" or "float16" to compute in it, see `fluid.Program`.
      buckets: to which sizes sequences are padded, as for `fluid.Trainer`; None for powers of two, so that an answer
        never depends on those before it.
      rename: names in the file to names of the program, see `fluid.io.load_params`.
      entry: which entry point of an exported model that has several.
      checkpoint: the `checkpoint_dir` of a Trainer, also an address, instead of a file: the parameters of its newest
        checkpoint that is whole.
      strict: False takes arrays that have the right names and shapes although they seem to belong to other layers, as
        after the program was written anew, and logs them. Parameters must not be missing in any case.
      url: of a server that `fluid.serve` or another implementation of the Open Inference Protocol runs, instead of all
        that is above: "http://host:8000", or of one of its models, "http://host:8000/v2/models/digits".
      token: what that server asks for, or None.
      seed: of the random numbers of a program that samples, from 0 to 2**64 - 1: two Inferencers with one seed
        draw the same sequence of numbers. None takes a seed from the system.
      parallel: as for `fluid.Trainer`; not for an exported model, which is made for one device.
      shardings: as for `fluid.Trainer`.

    Attributes:
      program: the discovered Program; a model behind a URL has none here.
      session: the Session underneath; nor this.
      remote: the model behind the URL, or None.
      seeds: the sequence of its seeds; `seeds.first` is the argument `seed`, or the seed from the system.

    Raises:
      ArgumentError: the seed is no whole number from 0 to 2**64 - 1.
      ParameterFileError: there is no such file, or it holds something else.
      ParameterError: parameters are missing or misshapen, or belong to other layers than those of their names here.
      CheckpointError: there is no such folder of checkpoints, or none in it is whole.
      ArtifactError: the exported model is missing, damaged, of a newer version, or made for other devices.
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
    _spelled: ClassVar = {
        "cpu": _PLACE,
        "cuda": _PLACE,
        "eval": "inferencer.infer(feed), which runs in test mode",
        "evaluate": "fluid.Trainer(train_program, optimizer).test(reader), of a program that returns a loss",
        "fit": "fluid.Trainer(train_program, optimizer).train(reader, num_epochs=10)",
        "forward": "inferencer.infer(feed)",
        "load": _LOAD,
        "load_params": _LOAD,
        "load_state_dict": _LOAD,
        "load_weights": _LOAD,
        "model": "inferencer.program",
        "params": "inferencer.session.params(), a dict of arrays by name",
        "parameters": "inferencer.session.params(), a dict of arrays by name",
        "place": "inferencer.session.place, or " + _PLACE,
        "predict_on_batch": "inferencer.infer(feed)",
        "run": "inferencer.infer(feed)",
        "save": "fluid.io.save_inference_model(path, infer_func, params)",
        "save_params": "fluid.io.save_params(inferencer.session, path)",
        "state_dict": "inferencer.session.params(), a dict of arrays by name",
        "summary": "fluid.summary(inferencer.program)",
        "test": "fluid.Trainer(train_program, optimizer).test(reader), of a program that returns a loss",
        "to": _PLACE,
        "train": "fluid.Trainer(train_program, optimizer).train(reader)",
        "transform": "inferencer.infer(feed)",
        "weights": "inferencer.session.params(), a dict of arrays by name",
    }

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
        strict: bool = True,
        url: str | None = None,
        token: str | None = None,
        seed: int | None = None,
        parallel: Parallel = None,
        shardings: Shardings | None = None,
    ):
        self.seeds = Seeds("Inferencer", seed)
        self.remote = None
        if url is not None:
            others = (infer_func, param_path, params, place, precision, buckets, rename, entry, checkpoint, shardings)
            if parallel or not strict or any(given is not None for given in others):
                raise errors.ArgumentTypeError(
                    'a model behind a URL takes nothing else: fluid.Inferencer(url="http://...")'
                )
            from fluid.remote import RemoteModel  # not everybody needs it

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
        if infer_func is None:
            refused = (precision, rename, parallel, shardings, not strict)
            self.session = Session(_exported(param_path, entry, place, refused), place=place)
        elif (
            found := ensemble_session(params, infer_func, place, precision, (rename, parallel, shardings))
        ) is not None:
            self.session = found
        else:
            self.session = Session(
                infer_func, place=place, precision=precision, parallel=parallel, shardings=shardings, initial=False
            )
            given: Any = param_path if params is None else params
            source = source_of(given) if checkpoint is None else newest_checkpoint(checkpoint)
            report = self.session._take_params(
                source.renamed(rename), allow_extra=True, strict=strict, advice=RENAME_THEM
            )
            if report.doubtful:
                report.tell()
        self.program = next(iter(self.session.programs.values()))
        if seed is not None:
            self.seeds.of("Inferencer", self.program, seed)
        elif (mesh := self.session.engine.layout.mesh) is not None and mesh.is_multi_process and self.program.draws:
            # All processes compute one answer, so that they draw the numbers of one seed.
            self.seeds = Seeds("Inferencer", group().exchange("the seed of an Inferencer", self.seeds.first)[0])
        self._bucket = bucket
        ladders = self.program.buckets if buckets is None else buckets
        self._buckets = Buckets(self.program.feeds, ladders, max_compilations=None)
        self._plans: dict[Any, Plan] = {}
        # For arrays of shapes that have passed every check, and run as they are; those of the newest shapes first.
        self._answers: tuple[Answer, ...] = ()

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
            LoDTensors. Any other named value can be given as well, and replaces what the program computes; a scalar
            stands there for an array of it. Feeds that are not needed then can be left out. A program of one feed also
            takes the data of that feed alone.
          fetch: names of values to return instead of the outputs.
          return_numpy: False leaves arrays on the device, as JAX arrays, and returns sequences as LoDTensors.
          seed: of the random numbers of this call, from 0 to 2**64 - 1: repeats one answer, whatever was called
            before. A Session, an exported model and a server draw the same numbers with this seed. None for other
            numbers in each call.

        Returns:
          Results: one value for each output, or each name in `fetch`: an array `[batch, ...]`; for sequences a
          SequenceBatch or NestedSequenceBatch of NumPy arrays, or else a LoDTensor.

        Raises:
          FeedError: data does not fit.
          UnknownNameError: the program has no such feed or value.
          RemoteError: the server behind the URL does not answer, or refuses.
          ArgumentError: the seed is no whole number from 0 to 2**64 - 1.
        """
        if self.remote is not None:
            named = feed if isinstance(feed, Mapping) else self._named(feed)
            return self.remote.infer(named, fetch, return_numpy, seed)
        plain = fetch is None and return_numpy and seed is None
        if plain:
            for answer in self._answers:
                results = answer(feed)
                if results is not None:
                    return results
        if not isinstance(feed, Mapping):
            feed = self._named(feed)
        key = tuple(feed) if fetch is None else (*feed, None, *([fetch] if isinstance(fetch, str) else fetch))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(feed, fetch)
            self._plans[key] = plan
        feeds = {name: read_feed(spec, feed[name]) for name, spec in plan.feeds}
        if plan.ragged:
            feeds = self._buckets.pad(feeds)
        overrides = {n: as_array(feed[n]) for n in plan.overrides} if plan.overrides else {}
        if not return_numpy:  # the step may still run after this call, when the caller changes its arrays
            feeds = self.session.engine.layout.take(feeds)
            overrides = self.session.engine.layout.take(overrides)
        draw = None if seed is None else self.session.engine.draw(self.seeds.of("infer", self.program, seed))
        values = plan.begin(feeds, overrides, draw)()
        # Only arrays that are fed as they came are known by their shapes.
        if plain and all(type(v) is np.ndarray and feeds.get(n) is v for n, v in feed.items()):
            if plan.takes(feeds, values):
                self._answers = (plan.answering(feeds, values), *self._answers[: _ANSWERS - 1])
        if return_numpy:
            values = on_host(values)
        else:
            values = [LoDTensor.of(v) if isinstance(v, _SEQUENCES) else self.session.engine.place(v) for v in values]
        return Results(values, plan.names)

    def __call__(self, *data: Any, **named: Any) -> Results:
        """Raise an error that names the method to call."""
        feeds = self.program.feeds if self.remote is None else self.remote.signature.feeds
        call = "data" if len(feeds) == 1 else data_sets.spelled(feeds)
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
        """Run the program over one pass of a reader, and give the results of each minibatch.

        Results come in the order of the reader and are not kept, so that memory is bounded however much data there is:
        when those of a minibatch are given, one more has been read.

        Args:
          reader: minibatches, as for `Trainer.train`. Feeds that the results do not depend on may be there or not.
          fetch: names of values to return instead of the outputs.
          feed_order: which field of a row is which feed, as for `Trainer.train`. Columns of dicts that it does not name
            are ignored, such as a label that the program does not declare.
          feed: what is fed beside every minibatch, as for `Session.run`: of a named value or a parameter, which it
            replaces, such as a scalar for all of its numbers; or of a feed that the reader does not give.
          seed: of the random numbers of this pass: repeats it, minibatch by minibatch, as the calls of an Inferencer of
            that seed do. None for other numbers in each pass.

        Returns:
          An iterator of Results, as `infer` returns them, one for each minibatch. Nothing is read before the first one
          is asked for.

        Raises:
          ArgumentTypeError: that is no reader, but data for `infer`.
          UnknownNameError: the program has no such value.
          ReaderError: raised while reading: the reader gives nothing.
          FeedError: raised while reading: data does not fit.

        Example:
          >>> import fluid, numpy as np
          >>> def program():
          ...     return {"sum": fluid.layers.reduce_sum(fluid.layers.data("x", shape=[2]), dim=1)}
          >>> data = fluid.reader.arrays(np.arange(6).reshape(3, 2), batch_size=2)
          >>> [results["sum"].tolist() for results in fluid.Inferencer(program, params={}).predict(data)]
          [[1.0, 5.0], [9.0]]
        """
        if data_sets.is_data(reader) or isinstance(reader, Mapping):
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
        source = minibatches(reader, order_of_results(self.program, names))
        fixed = constant(self.session, self.program, feed)
        needed = needed_feeds(self.session, self.program, names, fixed)
        convert = Converter(self.session.engine, self.program.feeds, feed_order, self._buckets, needed)
        plan = self._plan((*needed, *fixed.feeds, *fixed.overrides), fetch)
        plan.padded = plan.padded and not fixed.has_rows
        if seed is not None:
            self.seeds.of("predict", self.program, seed)
        seeds = Seeds("predict", seed) if seed is not None and self.program.draws else None

        def begin(minibatch: Any) -> Callable[[], Results]:
            draw = None if seeds is None else self.session.engine.draw(seeds.next())
            values = plan.begin({**minibatch, **fixed.feeds}, fixed.overrides, draw)
            return lambda: Results(on_host(values()), plan.names)

        return stream(InputPipeline(source, [convert]), begin)

    def _named(self, data: Any) -> Mapping[str, Any]:
        """Data by the name of its feed: what stands for the only feed, or the columns of a DataFrame."""
        feeds = self.program.feeds if self.remote is None else self.remote.signature.feeds
        columns = data_sets.columns_of(data) if data_sets.is_frame(data) else None
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
                f"name: inferencer.infer({data_sets.spelled(feeds)})"
            )
        return dict.fromkeys(feeds, data if columns is None else np.asarray(data))

    def _plan(self, feed: Iterable[str], fetch: Fetch | None) -> Plan:
        """Decide how calls with these names are answered."""
        program = self.program
        names = None if fetch is None else check_fetch(program, fetch)
        given_feeds, overrides = split_names(program, feed)
        feeds = [(n, program.feeds[n]) for n in given_feeds]
        request = Request(TEST, names, given_feeds, overrides, settled=True)
        wanted = program.outputs if names is None else [self._array(n) for n in names]
        given = [*(Array(s.shape, s.dtype) for _, s in feeds), *(self._array(n) for n in overrides)]
        padded = self._bucket and bool(given) and all(a.shape[:1] == (None,) for a in (*wanted, *given))
        step = bind(self.session.engine, program, request)
        names = program.output_names if fetch is None else names
        draw = self._draw if program.draws else None
        checked = program if fetch is None else None
        return Plan(feeds, overrides, step, padded, names, program.batch_sizes, draw, checked)

    def _draw(self) -> Draw | None:
        """Return the random key of the next call."""
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
            'fluid.Inferencer(param_path="digits.fluid"); params=, checkpoint=, strict=, parallel= and shardings= '
            "belong to a function, precision= and rename= to save_inference_model"
        )
    from fluid import artifact  # not everybody needs it

    return artifact.load(path).program(entry, place)


def _saved_by_the_original(path: Any) -> Any:
    """The program function of a folder that `save_inference_model` of the original wrote; None of anything else."""
    from fluid import original  # not everybody needs it

    return original.load_inference_model(path).program if original.is_inference_model(path) else None
