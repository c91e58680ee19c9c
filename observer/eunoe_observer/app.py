"""Putting the observer together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from . import errors_page, ingest, live, pages, sign_in
from .gate import Gate
from .observer import open_observer
from .settings import Settings


def create_app(settings: Settings) -> FastAPI:
    """Build the application; its lifespan opens the database and runs the writer."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_observer(settings) as observer:
            app.state.observer = observer
            yield

    # The generated documentation pages load their scripts from elsewhere, so there are none.
    app = FastAPI(title="Eunoe observer", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, settings=settings)
    app.add_exception_handler(HTTPException, errors_page.on_http_error)
    app.add_exception_handler(RequestValidationError, errors_page.on_bad_value)
    app.add_exception_handler(Exception, errors_page.on_failure)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    for module in (ingest, sign_in, live, pages):  # `live` first: a run's page takes any path
        app.include_router(module.router)
    return app
